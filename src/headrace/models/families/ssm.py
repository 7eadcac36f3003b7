"""The mixer of Mamba-2 (Dao and Gu, arXiv 2405.21060), for every family that has such layers.

A sequence's result does not depend on how its tokens are cut into steps. Where tokens meet, in the convolution and in
the recurrence, each is computed from its predecessors by the same operations in the same order, whether it comes alone
or among others. The functions between are built of operations that round every element alike, wherever it lies in its
tensor: on CPUs, ``silu``, ``sigmoid`` and ``softplus`` of PyTorch round an element in a vector register differently
from one in the rest behind the last full register, while ``exp`` and ``log1p`` do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.models.configs.ssm import SSMConfig
from headrace.models.families.layers import Linear
from headrace.models.families.state import Recurrence, State

# Ends of the names of a mixer's parameters that stay in float32, one number a head.
WIDE = (".A_log", ".D", ".dt_bias")


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)`` in float32 (Elfwing et al., arXiv 1702.03118), the same wherever an element lies."""
    wide = x.float()
    return wide / (1 + torch.exp(-wide))


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))`` of float32, the same wherever an element lies; above 20 it is ``x`` itself."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


class GatedRMSNorm(nn.Module):
    """Root mean square norm of ``x * silu(gate)``, each group of heads for itself.

    Args:
        size: Elements of a vector.
        groups: Equal parts of it that are normalized each.
        eps: Added to the mean square.
    """

    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.groups = groups
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Gate first, then normalize.

        Args:
            x: ``float32 [T, size]``.
            gate: ``[T, size]``.

        Returns:
            ``float32 [T, size]``.
        """
        gated = torch.unflatten(x * silu(gate), -1, (self.groups, -1))
        scaled = gated * torch.rsqrt(gated.pow(2).mean(-1, keepdim=True) + self.eps)
        normalized: Tensor = self.weight * scaled.flatten(-2)
        return normalized


class CausalConv(nn.Module):
    """Convolution over time of each channel by itself; a token sees itself and the ``kernel - 1`` before it."""

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, rows: Tensor) -> Tensor:
        """One product after the other, the oldest input's first, in float32.

        Args:
            rows: ``[kernel - 1 + n, channels]``: the inputs before, then those of n tokens.

        Returns:
            ``[n, channels]`` in the dtype of ``rows``.
        """
        weights = self.weight[:, 0].float().unbind(-1)
        wide, count = rows.float(), rows.shape[0] - len(weights) + 1
        mixed = wide[:count] * weights[0]
        for age, weight in enumerate(weights[1:], 1):
            mixed = mixed + wide[age : age + count] * weight
        if self.bias is not None:
            mixed = mixed + self.bias.float()
        return mixed.to(rows.dtype)


def scan(state: Tensor, decay: Tensor, write: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence of one sequence, token after token: ``state = decay * state + write b``, ``y = state c``.

    H heads of P channels with N numbers each, in G groups; all float32.

    Args:
        state: ``[H, P, N]``, before the first token; not changed.
        decay: ``[n, H]``.
        write: ``[n, H, P]``, the inputs times their time steps.
        b: ``[n, G, N]``, what each group writes by.
        c: ``[n, G, N]``, what it reads by.

    Returns:
        ``[n, H, P]``, what the tokens read, and the state after the last.
    """
    count, groups, size = b.shape
    now = torch.unflatten(state, 0, (groups, -1))  # [G, H / G, P, N]
    decays = decay.view(count, groups, -1, 1, 1).unbind()
    writes = torch.unflatten(write, 1, (groups, -1)).unsqueeze(-1).unbind()
    bs, cs = (x.view(count, groups, 1, 1, size).unbind() for x in (b, c))
    read = []
    for decay_t, write_t, b_t, c_t in zip(decays, writes, bs, cs, strict=True):
        now = now * decay_t + write_t * b_t
        # Multiply and sum, not a matrix product, whose order of summation may depend on where its operands lie.
        read.append((now * c_t).sum(-1))
    return torch.stack(read).flatten(1, 2), now.flatten(0, 1)


class Mixer(nn.Module):
    """Projections, convolution, recurrence and gated norm of one layer.

    The time step and the decay are computed in float32, as in the authors' kernels, and what they follow from stays
    in it (``WIDE``): an error of a decay grows with every token.

    Args:
        config: Its dimensions.
        layer: Its number.
    """

    def __init__(self, config: SSMConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.in_proj = Linear(config.hidden_size, config.inner + config.conv_channels + config.heads, config.proj_bias)
        self.conv1d = CausalConv(config.conv_channels, config.kernel, config.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(config.heads))
        self.A_log = nn.Parameter(torch.empty(config.heads))
        self.D = nn.Parameter(torch.empty(config.heads))
        self.norm = GatedRMSNorm(config.inner, config.groups, config.norm_eps)
        self.out_proj = Linear(config.inner, config.hidden_size, config.proj_bias)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        mixed: Tensor = self.out_proj(self.mix(self.in_proj(x), state).to(x.dtype))
        return mixed

    def mix(self, projected: Tensor, state: State) -> Tensor:
        """What lies between the two projections; bitwise the same however a sequence is cut into steps.

        Args:
            projected: ``[T, inner + conv_channels + heads]``: gate; x, B and C; time step.
            state: What the sequences keep.

        Returns:
            ``float32 [T, inner]``.
        """
        config = self.config
        gate, inputs, steps = torch.split(projected, [config.inner, config.conv_channels, config.heads], -1)
        shares = state.recurrences(self.layer)
        convolved, windows = self._convolve(inputs, shares)
        sizes = [config.inner, config.groups * config.state_size, config.groups * config.state_size]
        x, b, c = torch.split(silu(convolved).to(projected.dtype).float(), sizes, -1)
        x = torch.unflatten(x, -1, (config.heads, -1))
        b, c = (torch.unflatten(part, -1, (config.groups, -1)) for part in (b, c))
        step = softplus(steps.float() + self.dt_bias.float()).clamp(*config.time_step_limit)
        decay = torch.exp(-torch.exp(self.A_log.float()) * step)
        write = x * step[..., None]
        read = torch.zeros_like(x)
        for share, window in zip(shares, windows, strict=True):
            at = slice(share.begin, share.end)
            read[at], after = scan(share.state["ssm"], decay[at], write[at], b[at], c[at])
            share.keep(conv=window, ssm=after)
        skipped = read + x * self.D.float()[:, None]
        normalized: Tensor = self.norm(skipped.flatten(-2), gate)
        return normalized

    def _convolve(self, inputs: Tensor, shares: Sequence[Recurrence]) -> tuple[Tensor, list[Tensor]]:
        """The convolution of all sequences, and the last inputs of each, which it keeps."""
        convolved, windows = torch.zeros_like(inputs), []
        for share in shares:
            rows = torch.cat((share.state["conv"], inputs[share.begin : share.end]))
            convolved[share.begin : share.end] = self.conv1d(rows)
            windows.append(rows[-(self.config.kernel - 1) :])
        return convolved, windows
