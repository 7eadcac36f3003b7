"""What layers with a mixture of experts share: who computes which token, and how the results are put together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def mix_experts(
    x: Tensor, chosen: Tensor, shares: Tensor, experts: int, expert: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """The weighted sum of what each token's experts make of it.

    Each expert computes its tokens together. A token's sum is taken in the order of its ranks, in float32, so it
    does not depend on the other tokens of the batch.

    Args:
        x: ``[T, hidden]``.
        chosen: ``int64 [T, ranks]``, each token's experts by rank.
        shares: ``[T, ranks]``, factors of their results, in the dtype of ``x``.
        experts: How many there are.
        expert: Takes an expert's number and its tokens, ``[n, hidden]``; returns ``[n, hidden]``.

    Returns:
        ``[T, hidden]``.
    """
    ranks = chosen.shape[1]
    by_expert = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
    groups = x[by_expert // ranks].split(counts)
    results = torch.cat([expert(n, group) for n, group in enumerate(groups) if len(group)])
    by_rank = torch.empty_like(results)
    by_rank[by_expert] = results
    weighted = (by_rank.unflatten(0, (-1, ranks)) * shares[..., None]).float()
    total = weighted[:, 0]
    for rank in range(1, ranks):
        total = total + weighted[:, rank]
    return total.to(x.dtype)
