"""Mamba-2's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.ssm import SSMConfig, check_ssm, parse_time_step_limit
from headrace.models.spec import StateGroup

# The model itself knows no limit and its configs name none. llama.cpp's converter writes the same number.
CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Mamba2Config:
    """Dimensions and switches of a Mamba-2 model.

    Attributes:
        layers: Number of mixers; there is nothing else between the embedding and the last norm.
        norm_eps: Of all norms.
        context_length: ``max_position_embeddings`` if the config has it, else ``CONTEXT``.
        wide_residual: Layers add to a float32 vector, whatever the model computes in (``residual_in_fp32``).
        mixer: Dimensions of each layer.
        tied: The output layer is the embedding matrix.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    norm_eps: float
    context_length: int
    wide_residual: bool
    mixer: SSMConfig
    tied: bool

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""
        return (self.mixer.state_group(range(self.layers)),)


def parse_mamba2(config: Mapping[str, Any], file: object) -> Mamba2Config:
    """Parse the config of a Mamba-2 model, as Transformers' ``Mamba2Config`` writes it.

    Not read are keys that only initialize weights (``time_step_min``, ``time_step_max``, ``time_step_floor``) or
    choose a kernel's block size (``chunk_size``). Nor is ``norm_before_gate``: published configs set it, while their
    models were trained with the gate before the norm, and every implementation computes them so.

    Args:
        config: ``config.json``.
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    hidden, eps = read.integer("hidden_size"), read.number("layer_norm_epsilon", 1e-5)
    mixer = SSMConfig(
        hidden_size=hidden,
        heads=read.integer("num_heads"),
        head_dim=read.integer("head_dim"),
        state_size=read.integer("state_size", 128),
        groups=read.integer("n_groups", 8),
        kernel=read.integer("conv_kernel", 4),
        conv_bias=read.boolean("use_conv_bias", default=True),
        proj_bias=read.boolean("use_bias", default=False),
        norm_eps=eps,
        time_step_limit=parse_time_step_limit(read),
    )
    check_ssm(read, mixer, heads_key="num_heads", groups_key="n_groups", kernel_key="conv_kernel")
    _refuse_unsupported(read, mixer)
    return Mamba2Config(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        layers=read.integer("num_hidden_layers", most=MAX_LAYERS),
        norm_eps=eps,
        context_length=read.integer("max_position_embeddings", CONTEXT, MAX_CONTEXT),
        wide_residual=read.boolean("residual_in_fp32", default=True),
        mixer=mixer,
        tied=read.boolean("tie_word_embeddings", default=False),
    )


def _refuse_unsupported(read: ConfigReader, mixer: SSMConfig) -> None:
    expanded = mixer.hidden_size * read.integer("expand", 2)
    if mixer.inner != expanded:
        raise read.fail("num_heads", f"times head_dim is {mixer.inner}, but hidden_size times expand {expanded}")
    activation = read.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise read.fail("hidden_act", f"is {activation!r}; only 'silu' is supported")
    if not read.boolean("rms_norm", default=True):
        raise read.fail("rms_norm", "is false: mixers without the gated norm are not supported")
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: pre-quantized safetensors are not supported")
