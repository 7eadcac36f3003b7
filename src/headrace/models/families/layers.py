"""Layers that families share. State is float32 or bfloat16, without gradients.

Each rounds where Transformers does, so that the two agree to the last bits of float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headrace.models.configs.rope import RopeConfig


class Linear(nn.Linear):
    """``x @ weight.T + bias``, without the random initialization that loading would overwrite."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Embedding(nn.Embedding):
    """Rows of a matrix by token id, without the random initialization."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang and Sennrich, arXiv 1910.07467) over the last dimension.

    Computed in float32 and rounded to the input's dtype before the weight is applied.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class GatedMLP(nn.Module):
    """Feed-forward layer ``down(silu(gate(x)) * up(x))`` (SwiGLU; Shazeer, arXiv 2002.05202)."""

    def __init__(self, hidden: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner, bias=bias)
        self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        gated: Tensor = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        down: Tensor = self.down_proj(gated)
        return down


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair of a head's elements, ``float32 [head_dim / 2]``, in radians."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "factors":
        return plain / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.type == "llama3":
        return _llama3_frequencies(plain, rope)
    if rope.type == "yarn":
        return _yarn_frequencies(plain, rope, head_dim)
    return plain


def _llama3_frequencies(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended linearly."""
    wavelength = 2 * math.pi / plain
    stretched = plain / rope.factor
    kept = (rope.original_context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - kept) * stretched + kept * plain
    short = wavelength < rope.original_context / rope.high_freq_factor
    long = wavelength > rope.original_context / rope.low_freq_factor
    return torch.where(short, plain, torch.where(long, stretched, blended))


def _yarn_frequencies(plain: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """Frequencies that turn often in the original context are kept, slow ones divided, those between blended."""

    def turning(times: float) -> float:
        """Which frequency turns so many times in the original context; a fraction of an index."""
        return head_dim * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = turning(rope.beta_fast), turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    kept = 1 - divided
    return plain / rope.factor * (1 - kept) + plain * kept


def rope_tables(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every token's angles.

    Args:
        positions: ``int64 [T]``.
        frequencies: ``float32 [head_dim / 2]``.
        dtype: Of the result; angles are computed in float32 and rounded last.
        factor: Of both: ``RopeConfig.attention_factor``.

    Returns:
        Two ``[T, 1, head_dim]`` tensors, the second half of the last dimension equal to the first.
    """
    angles = positions[:, None].float() * frequencies
    both = torch.cat((angles, angles), dim=-1)[:, None, :]
    cos, sin = both.cos(), both.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate element i of every head against element ``i + head_dim / 2``; ``[T, heads, head_dim]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
