"""What layers with a mixture of experts share: who computes which token, and how the results are put together."""

from __future__ import annotations

import itertools
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
        shares: ``[T, ranks]``, factors of their results; products are rounded to their dtype if ``x`` has it too.
        experts: How many there are.
        expert: Takes an expert's number and its tokens, ``[n, hidden]``; returns ``[n, hidden]``.

    Returns:
        ``[T, hidden]``.
    """
    ranks = chosen.shape[1]
    by_expert = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=experts).cumsum(0).tolist()
    rows, results = x[by_expert // ranks], []
    for number, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        if begin < end:
            results.append(expert(number, rows[begin:end]))
    by_rank = torch.empty_like(rows)
    by_rank[by_expert] = torch.cat(results)
    weighted = (by_rank.reshape(len(x), ranks, -1) * shares[..., None]).float()
    total = weighted[:, 0]
    for rank in range(1, ranks):
        total = total + weighted[:, rank]
    return total.to(x.dtype)
