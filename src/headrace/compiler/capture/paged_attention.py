"""Attention over pages, in plain PyTorch: what ``State.attend`` is while a family is captured.

The tokens of a step lie side by side, ``row`` says whose each is. Keys and values of all sequences lie in pages of 16
tokens; ``page_rows`` says which pages a sequence has::

    position s of sequence b     page page_rows[b, s // 16], slot s % 16
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.compiler.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Step:
    """What a step brings, apart from its tokens.

    Attributes:
        positions: int32 [T], of each token in its sequence.
        row: int32 [T], the sequence that each token belongs to.
        page_rows: int32 [B, P], pages of each sequence in order.
        context: [S]; its length is the number of positions that attention looks at, its contents do not matter.
    """

    positions: Tensor
    row: Tensor
    page_rows: Tensor
    context: Tensor


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """A ``State`` (``headrace.models.families.state``) of attention over all tokens, in pages.

    Attributes:
        step: The step.
        keys: Of each layer [pages, page tokens, kv_heads, head_dim]; written in place.
        values: Likewise.
    """

    step: Step
    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store keys and values, then let each token see its sequence up to itself.

        Args:
            layer: Number of the layer.
            query: [T, heads, head_dim].
            key: [T, kv_heads, head_dim].
            value: [T, kv_heads, head_dim].
            scale: Factor of the scores; None: ``head_dim ** -0.5``.
            sinks: Must be None.

        Returns:
            [T, heads, head_dim].

        Raises:
            Unsupported: There are sinks.
        """
        if sinks is not None:
            raise Unsupported("attention", f"layer {layer}", "attention sinks are not translated")
        step, keys, values = self.step, self.keys[layer], self.values[layer]
        size = keys.shape[1]
        position = torch.arange(step.context.shape[0], dtype=torch.int32, device=query.device)
        page = position // size
        here = (step.page_rows[step.row, page[step.positions]], step.positions % size)
        keys.index_put_(here, key)
        values.index_put_(here, value)

        there = (step.page_rows[step.row][:, page], (position % size)[None, :])
        # Heads in groups, so that no key is repeated for the queries that share it.
        grouped = query.reshape(-1, key.shape[1], query.shape[1] // key.shape[1], query.shape[2])
        scores = torch.einsum("tkgd,tskd->tkgs", grouped, keys[there]) * (
            1 / math.sqrt(query.shape[-1]) if scale is None else scale
        )
        later = position[None, :] > step.positions[:, None]
        seen = scores.masked_fill(later[:, None, None, :], float("-inf"))
        mixed = torch.einsum("tkgs,tskd->tkgd", seen.softmax(-1), values[there])
        return mixed.flatten(1, 2)
