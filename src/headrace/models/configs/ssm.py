"""Dimensions of a Mamba-2 mixer, and what it keeps: for every family that has such layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.models.configs.reader import ConfigReader
from headrace.models.spec import StateGroup, StatePart


@dataclass(frozen=True, slots=True)
class SSMConfig:
    """Dimensions of the mixer of Mamba-2 (Dao and Gu, arXiv 2405.21060).

    Attributes:
        hidden_size: Elements of its input and its output.
        heads: Independent recurrences, each with one decay.
        head_dim: Channels of a head.
        state_size: Numbers that each channel keeps (the paper's N).
        groups: Heads of one group read and write their states by the same B and C.
        kernel: Inputs that the causal convolution sees, the current one included.
        conv_bias: The convolution has a bias.
        proj_bias: The input and output projections have biases.
        norm_eps: Of the gated norm, whose groups are those of the heads.
        time_step_limit: Least and greatest time step.
    """

    hidden_size: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    kernel: int
    conv_bias: bool
    proj_bias: bool
    norm_eps: float
    time_step_limit: tuple[float, float] = (0.0, math.inf)

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that the convolution mixes over time: x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    def state_group(self, layers: Iterable[int]) -> StateGroup:
        """What mixers of these layers keep.

        ``conv``: the convolution's last ``kernel - 1`` inputs, the oldest first, each as one row. ``ssm``: the state
        of every head. It is wide, because it sums over all tokens so far.
        """
        conv = StatePart("conv", (self.kernel - 1, self.conv_channels))
        ssm = StatePart("ssm", (self.heads, self.head_dim, self.state_size), wide=True)
        return StateGroup("recurrent", tuple(layers), (conv, ssm))


def check_ssm(read: ConfigReader, config: SSMConfig, *, heads_key: str, groups_key: str, kernel_key: str) -> None:
    """Check what the dimensions must have in common.

    Args:
        read: For errors.
        config: The dimensions.
        heads_key: The config's name of ``heads``.
        groups_key: Of ``groups``.
        kernel_key: Of ``kernel``.

    Raises:
        CheckpointError: The groups do not divide the heads, or the convolution sees the current token alone.
    """
    if config.heads % config.groups:
        raise read.fail(groups_key, f"must divide the {config.heads} heads of {heads_key!r}, not {config.groups}")
    if config.kernel < 2:
        raise read.fail(kernel_key, "is 1; only convolutions over at least 2 tokens are supported")


def parse_time_step_limit(read: ConfigReader) -> tuple[float, float]:
    """``time_step_limit``: least and greatest time step; without the key, 0 and infinity.

    JSON has no infinity: older files write the bare word, which Python's reader takes, newer ones an object.

    Raises:
        CheckpointError: It is no list of two numbers in order, the first 0 or more.
    """
    value = read.config.get("time_step_limit")
    if value is None:
        return 0.0, math.inf
    ends = [_end(end) for end in value] if isinstance(value, list) else []
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
        raise read.fail("time_step_limit", f"must hold two numbers, 0 <= least <= greatest, not {value!r:.50}")
    return ends[0], ends[1]


def _end(value: object) -> float:
    """One end of the limit; NaN if it is no number."""
    if value == {"__float__": "Infinity"}:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    # An integer can be too large for a float.
    return math.inf if value >= 1e30 else float(value)
