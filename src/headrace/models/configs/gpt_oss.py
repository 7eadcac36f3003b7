"""gpt-oss's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.rope import RopeConfig, parse_rope
from headrace.models.configs.windows import attention_groups, parse_window, parse_windowed
from headrace.models.spec import StateGroup

# Transformers takes these where a config has no rope settings at all.
USUAL_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Dimensions and switches of a gpt-oss model.

    Attributes:
        intermediate_size: Inner size of each expert.
        windowed: Of each layer, whether it attends over a window.
        window: Tokens that a token sees in those, itself included; 0 if there are none.
        attention_bias: The attention's four projections have biases.
        experts: Feed-forward layers to choose from, in each layer.
        chosen_experts: How many of them compute a token.
        swiglu_alpha: Slope of the gate's sigmoid.
        swiglu_limit: Bound of what enters the gated product.
        tied: The output layer is the embedding matrix.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    windowed: tuple[bool, ...]
    window: int
    rope: RopeConfig
    attention_bias: bool
    experts: int
    chosen_experts: int
    swiglu_alpha: float
    swiglu_limit: float
    tied: bool

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""
        return attention_groups(self.windowed, self.window, self.kv_heads, self.head_dim)


def parse_gpt_oss(config: Mapping[str, Any], file: object) -> GptOssConfig:
    """Parse the config of a gpt-oss model whose weights are not quantized.

    Args:
        config: ``config.json``, with the rope settings under ``rope_parameters`` (Transformers 5) or under
            ``rope_theta`` and ``rope_scaling`` (before).
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    layers = read.integer("num_hidden_layers", most=MAX_LAYERS)
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads", 64)
    # As in Transformers, null says: follow from the others; and absent: as in the published models.
    head_dim = read.integer("head_dim", max(hidden // heads, 1) if "head_dim" in config else 64)
    kv_heads = read.integer("num_key_value_heads", heads if "num_key_value_heads" in config else 8)
    context = read.integer("max_position_embeddings", 131072, MAX_CONTEXT)
    windowed = parse_windowed(read, layers, 2)
    parsed = GptOssConfig(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps", 1e-5),
        context_length=context,
        windowed=windowed,
        window=parse_window(read, windowed, 128),
        rope=_parse_rope(read, head_dim, context),
        attention_bias=read.boolean("attention_bias", default=True),
        experts=read.integer("num_local_experts"),
        chosen_experts=read.integer("num_experts_per_tok", 4),
        swiglu_alpha=read.number("swiglu_alpha", 1.702),
        swiglu_limit=read.number("swiglu_limit", 7.0),
        tied=read.boolean("tie_word_embeddings", default=False),
    )
    _refuse_unsupported(read, parsed)
    return parsed


def _parse_rope(read: ConfigReader, head_dim: int, context: int) -> RopeConfig:
    newer, older = read.config.get("rope_parameters"), read.config.get("rope_scaling")
    if newer is not None and older is not None:
        raise read.fail("rope_scaling", "is set beside 'rope_parameters', which says the same in another way")
    if newer is None and not older:
        read = ConfigReader({**read.config, "rope_parameters": USUAL_ROPE}, read.file)
    return parse_rope(read, head_dim, context, theta=150000.0)


def _refuse_unsupported(read: ConfigReader, parsed: GptOssConfig) -> None:
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: MXFP4 and other quantized safetensors are not supported")
    if parsed.heads % parsed.kv_heads:
        raise read.fail("num_key_value_heads", f"must divide the {parsed.heads} attention heads, not {parsed.kv_heads}")
    if parsed.head_dim % 2:
        raise read.fail("head_dim", f"must be even for rotary embeddings, not {parsed.head_dim}")
    if parsed.chosen_experts > parsed.experts:
        raise read.fail(
            "num_experts_per_tok", f"must be at most the {parsed.experts} experts, not {parsed.chosen_experts}"
        )
    activation = read.text("hidden_act", "silu")
    if activation != "silu":
        raise read.fail("hidden_act", f"is {activation!r}; only 'silu' is supported")
