"""Granite 4's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.rope import RopeConfig, parse_rope
from headrace.models.configs.ssm import SSMConfig, check_ssm, parse_time_step_limit
from headrace.models.spec import StateGroup, attention_group

LayerType = Literal["mamba", "attention"]

# Published configs have the short names; Transformers 5 writes the long ones.
_LAYER_TYPES: dict[str, LayerType] = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Dimensions of a mixture of experts.

    Attributes:
        count: Experts of a layer.
        chosen: How many of them compute a token.
        inner: Elements between an expert's two matrices.
    """

    count: int
    chosen: int
    inner: int


@dataclass(frozen=True, slots=True)
class GraniteHybridConfig:
    """Dimensions and switches of a Granite 4 model.

    Attributes:
        layer_types: What each layer mixes tokens by.
        heads: Of attention, as are ``kv_heads``, ``head_dim`` and ``attention_bias`` (of all four projections).
        rope: None: attention sees no positions ("nope"), whose order the Mamba layers tell.
        mixer: Dimensions of the Mamba layers; None: there are none.
        experts: Dimensions of the mixture of experts beside the shared one; None: the shared one is alone.
        shared_inner: Elements between the two matrices of the shared expert.
        embedding_multiplier: Factor of embeddings.
        residual_multiplier: Factor of what a layer adds.
        attention_multiplier: Factor of attention scores.
        logits_scaling: Divisor of logits.
        tied: The output layer is the embedding matrix.
    """

    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerType, ...]
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    norm_eps: float
    context_length: int
    rope: RopeConfig | None
    mixer: SSMConfig | None
    experts: ExpertsConfig | None
    shared_inner: int
    embedding_multiplier: float
    residual_multiplier: float
    attention_multiplier: float
    logits_scaling: float
    tied: bool

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""
        groups = []
        attention = [layer for layer, kind in enumerate(self.layer_types) if kind == "attention"]
        if attention:
            groups.append(attention_group("full", attention, self.kv_heads, self.head_dim))
        if self.mixer is not None:
            groups.append(self.mixer.state_group(n for n, kind in enumerate(self.layer_types) if kind == "mamba"))
        return tuple(groups)


def parse_granite_hybrid(config: Mapping[str, Any], file: object) -> GraniteHybridConfig:
    """Parse the config of a Granite 4 model, as Transformers' ``GraniteMoeHybridConfig`` writes it.

    Args:
        config: ``config.json``.
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("head_dim", max(hidden // heads, 1))
    context = read.integer("max_position_embeddings", most=MAX_CONTEXT)
    layer_types = _parse_layer_types(read)
    parsed = GraniteHybridConfig(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        layer_types=layer_types,
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        attention_bias=read.boolean("attention_bias", default=False),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        context_length=context,
        rope=_parse_positions(read, head_dim, context),
        mixer=_parse_mixer(read, hidden) if "mamba" in layer_types else None,
        experts=_parse_experts(read),
        shared_inner=read.integer("shared_intermediate_size", 1024),
        embedding_multiplier=read.number("embedding_multiplier", 1.0),
        residual_multiplier=read.number("residual_multiplier", 1.0),
        attention_multiplier=read.number("attention_multiplier", 1.0),
        logits_scaling=read.number("logits_scaling", 1.0),
        tied=read.boolean("tie_word_embeddings", default=False),
    )
    _refuse_unsupported(read, parsed)
    return parsed


def _parse_layer_types(read: ConfigReader) -> tuple[LayerType, ...]:
    """One type a layer; ``layers_block_type`` is the key's older name. Without either, all are Mamba layers."""
    layers = read.integer("num_hidden_layers", most=MAX_LAYERS)
    key = "layers_block_type" if read.config.get("layer_types") is None else "layer_types"
    names = read.config.get(key)
    if names is None:
        names = ["mamba"] * layers
    if not isinstance(names, list) or len(names) != layers:
        raise read.fail(key, f"must hold the types of {layers} layers, not {names!r:.50}")
    for name in names:
        if not isinstance(name, str) or name not in _LAYER_TYPES:
            raise read.fail(key, f"holds {name!r:.50}; known are {', '.join(_LAYER_TYPES)}")
    return tuple(_LAYER_TYPES[name] for name in names)


def _parse_positions(read: ConfigReader, head_dim: int, context: int) -> RopeConfig | None:
    kind = read.text("position_embedding_type", "nope")
    if kind == "nope":
        return None
    if kind != "rope":
        raise read.fail("position_embedding_type", f"is {kind!r:.50}; known are 'rope' and 'nope'")
    if head_dim % 2:
        raise read.fail("head_dim", f"must be even for rotary embeddings, not {head_dim}")
    return parse_rope(read, head_dim, context)


def _parse_experts(read: ConfigReader) -> ExpertsConfig | None:
    count = read.integer("num_local_experts", 8, least=0)
    if count == 0:
        return None
    chosen = read.integer("num_experts_per_tok", 2)
    if chosen > count:
        raise read.fail("num_experts_per_tok", f"is {chosen}, more than the {count} experts")
    return ExpertsConfig(count, chosen, read.integer("intermediate_size"))


def _parse_mixer(read: ConfigReader, hidden: int) -> SSMConfig:
    expanded, heads = hidden * read.integer("mamba_expand", 2), read.integer("mamba_n_heads", 128)
    auto = read.config.get("mamba_d_head") in (None, "auto")
    mixer = SSMConfig(
        hidden_size=hidden,
        heads=heads,
        head_dim=max(expanded // heads, 1) if auto else read.integer("mamba_d_head"),
        state_size=read.integer("mamba_d_state", 256),
        groups=read.integer("mamba_n_groups", 1),
        kernel=read.integer("mamba_d_conv", 4),
        conv_bias=read.boolean("mamba_conv_bias", default=True),
        proj_bias=read.boolean("mamba_proj_bias", default=False),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        time_step_limit=parse_time_step_limit(read),
    )
    if mixer.inner != expanded:
        message = f"times mamba_d_head is {mixer.inner}, but hidden_size times mamba_expand {expanded}"
        raise read.fail("mamba_n_heads", message)
    check_ssm(read, mixer, heads_key="mamba_n_heads", groups_key="mamba_n_groups", kernel_key="mamba_d_conv")
    return mixer


def _refuse_unsupported(read: ConfigReader, parsed: GraniteHybridConfig) -> None:
    if parsed.heads % parsed.kv_heads:
        raise read.fail("num_key_value_heads", f"must divide the {parsed.heads} attention heads, not {parsed.kv_heads}")
    if read.config.get("head_dim") is None and parsed.hidden_size % parsed.heads:
        raise read.fail("hidden_size", f"must be a multiple of the {parsed.heads} attention heads without head_dim")
    activation = read.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise read.fail("hidden_act", f"is {activation!r}; only 'silu' is supported")
    if read.text("normalization_function", "rmsnorm") != "rmsnorm":
        raise read.fail("normalization_function", "must be 'rmsnorm': other norms are not supported")
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: pre-quantized safetensors are not supported")
