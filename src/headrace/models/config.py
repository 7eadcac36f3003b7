"""The Llama line's dimensions, parsed from ``config.json`` and checked value by value. No PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import CheckpointError

RopeType = Literal["default", "linear", "llama3", "factors"]
# Far above any real model; below what could exhaust memory by the number of modules alone.
MAX_LAYERS = 1024
MAX_SIZE = 1 << 24
MAX_CONTEXT = 1 << 31


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864) and its scaling.

    Attributes:
        type: ``default``; ``linear`` divides every frequency by ``factor`` (position interpolation,
            arXiv 2306.15595); ``llama3`` does so for long wavelengths only and blends between; ``factors``
            divides frequency i by ``factors[i]``, the table that GGUF files carry instead of a rule.
        theta: Base of the wavelengths.
        factor: Divisor of ``linear`` and ``llama3``.
        low_freq_factor: ``llama3``: wavelengths above ``original_context / low_freq_factor`` are scaled.
        high_freq_factor: ``llama3``: wavelengths below ``original_context / high_freq_factor`` are kept.
        original_context: ``llama3``: context that the model was first trained with.
        factors: ``factors``: one divisor a pair of a head's elements.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Dimensions and switches of a model of the Llama line.

    Attributes:
        variant: ``model_type`` of the config: ``llama``, ``mistral``, ``qwen2`` or ``qwen3``.
        qkv_bias: The query, key and value projections have biases.
        output_bias: The attention's output projection has a bias.
        mlp_bias: The feed-forward projections have biases.
        qk_norm: Queries and keys are normalized per head before rope (Qwen3).
        tied: The output layer is the embedding matrix.
    """

    variant: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool


class ConfigReader:
    """Typed access to a config; every error names the file and the key.

    ``null`` counts as absent, as it does in Transformers.
    """

    def __init__(self, config: Mapping[str, Any], file: object, prefix: str = "") -> None:
        self.config = config
        self.file = file
        self.prefix = prefix

    def fail(self, key: str, message: str) -> CheckpointError:
        """An error about one key, ready to raise."""
        return CheckpointError(f"config key {self.prefix + key!r} {message}", file=self.file)

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is not None:
            return value
        if default is ...:
            raise self.fail(key, "is missing")
        return default

    def integer(self, key: str, default: int | None = ..., most: int = MAX_SIZE) -> int:  # type: ignore[assignment]
        """An integer from 1 to ``most``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fail(key, f"must be an integer from 1 to {most}, not {value!r:.50}")
        return value

    def number(self, key: str, default: float | None = ...) -> float:  # type: ignore[assignment]
        """A finite number above 0."""
        value = self._get(key, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        # A JSON integer can be too large for a float, where isfinite raises instead of answering.
        if not good or not 0 < value < 1e30 or not math.isfinite(value):
            raise self.fail(key, f"must be a finite number above 0, not {value!r:.50}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, not {value!r:.50}")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, not {value!r:.50}")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object, empty if absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(key, f"must be an object, not {value!r:.50}")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id, a list of them, or nothing; each inside the vocabulary."""
        value = self._get(key, [])
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise self.fail(key, f"must hold token ids below {vocab_size}, not {token!r:.50}")
        return tuple(dict.fromkeys(ids))


def parse_llama(config: Mapping[str, Any], file: object) -> LlamaConfig:
    """Parse the config of a Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 or Qwen3 model.

    Args:
        config: ``config.json``, with the rope settings under ``rope_parameters`` (Transformers 5) or under
            ``rope_theta`` and ``rope_scaling`` (before).
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    variant = read.text("model_type", "llama")
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    # Transformers' own default for Qwen3 is fixed, not derived from the hidden size.
    head_dim = read.integer("head_dim", 128 if variant == "qwen3" else max(hidden // heads, 1))
    context = read.integer("max_position_embeddings", most=MAX_CONTEXT)
    kv_heads = read.integer("num_key_value_heads", heads)
    bias = read.boolean("attention_bias", default=False)
    parsed = LlamaConfig(
        variant=variant,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        layers=read.integer("num_hidden_layers", most=MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps", 1e-6),
        context_length=context,
        rope=_parse_rope(read, head_dim, context),
        qkv_bias=bias or variant == "qwen2",
        output_bias=bias and variant in ("llama", "qwen3"),
        mlp_bias=read.boolean("mlp_bias", default=False) and variant == "llama",
        qk_norm=variant == "qwen3",
        tied=read.boolean("tie_word_embeddings", default=False),
    )
    _refuse_unsupported(read, parsed)
    return parsed


def _refuse_unsupported(read: ConfigReader, parsed: LlamaConfig) -> None:
    if parsed.heads % parsed.kv_heads:
        raise read.fail("num_key_value_heads", f"must divide the {parsed.heads} attention heads, not {parsed.kv_heads}")
    if parsed.head_dim % 2:
        raise read.fail("head_dim", f"must be even for rotary embeddings, not {parsed.head_dim}")
    if "head_dim" not in read.config and parsed.variant != "qwen3" and parsed.hidden_size % parsed.heads:
        raise read.fail("hidden_size", f"must be a multiple of the {parsed.heads} attention heads without head_dim")
    if read.integer("v_head_dim", parsed.head_dim) != parsed.head_dim:
        raise read.fail("v_head_dim", "must equal head_dim: other value sizes are not supported")
    activation = read.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise read.fail("hidden_act", f"is {activation!r}; only 'silu' is supported")
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: pre-quantized safetensors are not supported")
    _refuse_window(read, parsed)


def _refuse_window(read: ConfigReader, parsed: LlamaConfig) -> None:
    """A window at least as long as the context never hides anything, so it is as good as none."""
    if parsed.variant == "llama" or read.config.get("sliding_window") is None:
        return
    # Qwen writes a window into every config and switches it by a second key; Mistral has only the first.
    if parsed.variant.startswith("qwen") and not read.boolean("use_sliding_window", default=False):
        return
    window = read.integer("sliding_window", most=MAX_CONTEXT)
    if window < parsed.context_length:
        raise read.fail(
            "sliding_window",
            f"is {window}, shorter than the context of {parsed.context_length}: "
            "sliding-window attention is not supported",
        )


def _parse_rope(read: ConfigReader, head_dim: int, context: int) -> RopeConfig:
    """Rope settings, from the newer key if it is there."""
    key = "rope_parameters" if read.config.get("rope_parameters") is not None else "rope_scaling"
    rope = ConfigReader(read.mapping(key), read.file, f"{key}.")
    theta = rope.number("rope_theta", read.number("rope_theta", 10000.0))
    kind = rope.text("rope_type", rope.text("type", "default"))
    partial = rope.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise rope.fail("partial_rotary_factor", f"is {partial}: rotating a part of each head is not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig("linear", theta, rope.number("factor"))
    if kind == "factors":
        return RopeConfig("factors", theta, factors=_parse_factors(rope, head_dim))
    if kind != "llama3":
        raise rope.fail("rope_type", f"is {kind!r}; known are default, linear and llama3")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.fail("high_freq_factor", f"must be above low_freq_factor {low}, not {high}")
    original = rope.integer(
        "original_max_position_embeddings",
        read.integer("original_max_position_embeddings", context, MAX_CONTEXT),
        MAX_CONTEXT,
    )
    return RopeConfig("llama3", theta, rope.number("factor"), low, high, original)


def _parse_factors(rope: ConfigReader, head_dim: int) -> tuple[float, ...]:
    factors = rope.config.get("factors")
    if not isinstance(factors, list) or len(factors) != head_dim // 2:
        raise rope.fail("factors", f"must hold {head_dim // 2} numbers, one a pair of a head's elements")
    for factor in factors:
        if not isinstance(factor, float) or not math.isfinite(factor) or factor <= 0:
            raise rope.fail("factors", f"must hold finite numbers above 0, not {factor!r:.50}")
    return tuple(factors)
