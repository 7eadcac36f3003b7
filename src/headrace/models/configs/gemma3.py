"""Gemma 3's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.rope import RopeConfig, parse_rope_settings
from headrace.models.configs.windows import FULL, WINDOW, attention_groups, parse_window, parse_windowed
from headrace.models.spec import StateGroup


@dataclass(frozen=True, slots=True)
class Gemma3Config:
    """Dimensions and switches of a Gemma 3 text model.

    Attributes:
        windowed: Of each layer, whether it attends over a window.
        window: Tokens that a token sees in those, itself included; 0 if there are none.
        rope: Of the layers that attend over everything.
        window_rope: Of those that attend over a window.
        attention_bias: The attention's four projections have biases.
        query_scalar: ``query_pre_attn_scalar``: scores are divided by its square root.
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
    window_rope: RopeConfig
    attention_bias: bool
    query_scalar: float
    tied: bool

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""
        return attention_groups(self.windowed, self.window, self.kv_heads, self.head_dim)


def parse_gemma3(config: Mapping[str, Any], file: object) -> Gemma3Config:
    """Parse the config of a Gemma 3 text model.

    Args:
        config: ``config.json``. The rope settings stand under ``rope_parameters`` for each kind of layer
            (Transformers 5), or under ``rope_theta`` and ``rope_scaling`` for the full layers and
            ``rope_local_base_freq`` for the others (before).
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    layers = read.integer("num_hidden_layers", most=MAX_LAYERS)
    head_dim = read.integer("head_dim", 256)
    context = read.integer("max_position_embeddings", 131072, MAX_CONTEXT)
    windowed = parse_windowed(read, layers, read.integer("sliding_window_pattern", 6))
    rope, window_rope = _parse_ropes(read, head_dim, context)
    parsed = Gemma3Config(
        vocab_size=read.integer("vocab_size"),
        hidden_size=read.integer("hidden_size"),
        intermediate_size=read.integer("intermediate_size"),
        layers=layers,
        heads=read.integer("num_attention_heads", 8),
        kv_heads=read.integer("num_key_value_heads", 4),
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps", 1e-6),
        context_length=context,
        windowed=windowed,
        window=parse_window(read, windowed, 4096),
        rope=rope,
        window_rope=window_rope,
        attention_bias=read.boolean("attention_bias", default=False),
        query_scalar=read.number("query_pre_attn_scalar", 256.0),
        tied=read.boolean("tie_word_embeddings", default=True),
    )
    _refuse_unsupported(read, parsed)
    return parsed


def _parse_ropes(read: ConfigReader, head_dim: int, context: int) -> tuple[RopeConfig, RopeConfig]:
    """Settings of the full layers, and of the window layers."""
    thetas = {FULL: read.number("rope_theta", 1e6), WINDOW: read.number("rope_local_base_freq", 1e4)}
    if read.config.get("rope_parameters") is None:
        # The older key speaks of the full layers alone.
        scaling = ConfigReader(read.mapping("rope_scaling"), read.file, "rope_scaling.")
        full = parse_rope_settings(read, scaling, head_dim, context, thetas[FULL])
        return full, RopeConfig(theta=thetas[WINDOW])
    if read.config.get("rope_scaling") is not None:
        raise read.fail("rope_scaling", "is set beside 'rope_parameters', which says the same in another way")
    by_kind = ConfigReader(read.mapping("rope_parameters"), read.file, "rope_parameters.")
    for key in by_kind.config:
        if key not in thetas:
            raise by_kind.fail(key, f"is none of the kinds of layers, {FULL!r} and {WINDOW!r}")
    full, window = (
        parse_rope_settings(
            read, ConfigReader(by_kind.mapping(kind), read.file, f"rope_parameters.{kind}."), head_dim, context, theta
        )
        for kind, theta in thetas.items()
    )
    return full, window


def _refuse_unsupported(read: ConfigReader, parsed: Gemma3Config) -> None:
    if parsed.heads % parsed.kv_heads:
        raise read.fail("num_key_value_heads", f"must divide the {parsed.heads} attention heads, not {parsed.kv_heads}")
    if parsed.head_dim % 2:
        raise read.fail("head_dim", f"must be even for rotary embeddings, not {parsed.head_dim}")
    activation = read.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise read.fail("hidden_activation", f"is {activation!r}; only 'gelu_pytorch_tanh' is supported")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if read.config.get(key) is not None:
            raise read.fail(key, "is set: capped scores and logits are not supported")
    if read.boolean("use_bidirectional_attention", default=False):
        raise read.fail("use_bidirectional_attention", "is true: attention to later tokens is not supported")
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: pre-quantized safetensors are not supported")
