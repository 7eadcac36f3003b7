"""The Llama line's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.rope import RopeConfig, parse_rope
from headrace.models.spec import StateGroup, attention_group


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

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""
        return (attention_group("full", range(self.layers), self.kv_heads, self.head_dim),)


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
        rope=parse_rope(read, head_dim, context),
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
