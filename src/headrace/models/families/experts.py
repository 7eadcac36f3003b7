"""Mixtures of experts on ragged tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def mix_experts(x: Tensor, chosen: Tensor, weights: Tensor, experts: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
    """The weighted sum of what each token's experts make of it.

    An expert computes all its tokens together. A token's sum is in float32 and in the order of its own choice, so
    that it does not depend on which experts the other tokens of the batch chose.

    Args:
        x: ``[T, hidden]``.
        chosen: ``int64 [T, ranks]``, numbers of the experts of each token.
        weights: ``float32 [T, ranks]``.
        experts: All of them, ``[n, hidden] -> [n, hidden]`` each.

    Returns:
        ``[T, hidden]`` in the dtype of ``x``.
    """
    ranks = chosen.shape[1]
    wanted = chosen.flatten()
    order = wanted.argsort(stable=True)
    every = tuple(experts)
    groups = torch.split(x[order // ranks], torch.bincount(wanted, minlength=len(every)).tolist())
    by_expert = torch.cat([expert(group) for expert, group in zip(every, groups, strict=True) if len(group)])
    outputs = torch.empty_like(by_expert)
    outputs[order] = by_expert
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for output, weight in zip(outputs.view(-1, ranks, x.shape[1]).unbind(1), weights.unbind(1), strict=True):
        total += output * weight[:, None]
    return total.to(x.dtype)
