"""A step's ``State`` in pages, in plain PyTorch: what ``EagerExecutor`` hands to a family's forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.memory.state_memory import READ, WRITE
from headrace.runtime.batch import IntArray
from headrace.runtime.state_layout import StateLayout

STATE_ROW = 2  # pages in the row of a recurrent group: READ and WRITE


class GroupPages:
    """A group's pages in an arena, part by part.

    Args:
        layout: What a page holds.
        state: uint8 [bytes], the arena.
        slab_bytes: Bytes of a slab; pages fill it from its start, and what is left is not used.
        dtype: Of elements that are not wide.
    """

    def __init__(self, layout: StateLayout, state: npt.NDArray[np.uint8], slab_bytes: int, dtype: torch.dtype) -> None:
        self.layout, self._slab_bytes = layout, slab_bytes
        self.at = {layer: n for n, layer in enumerate(layout.group.layers)}
        slabs, pages = len(state) // slab_bytes, slab_bytes // layout.page_bytes
        self.parts: dict[str, Tensor] = {}
        for place in layout.places():
            kind = torch.float32 if place.part.wide else dtype
            size = kind.itemsize
            inner = [math.prod(place.shape[n + 1 :]) for n in range(len(place.shape))]
            self.parts[place.part.name] = (
                torch.from_numpy(state)
                .view(kind)
                .as_strided(
                    (slabs, pages, *place.shape), (slab_bytes // size, layout.page_bytes // size, *inner),
                    place.begin // size,
                )
            )  # fmt: skip

    def find(self, offsets: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Slab and page in it of each byte offset; int64 each."""
        slabs, rest = np.divmod(offsets, self._slab_bytes)
        return torch.from_numpy(slabs), torch.from_numpy(rest // self.layout.page_bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a batch.

    Attributes:
        slot: Of the executor.
        begin: Its first token in the batch.
        end: One behind its last.
        context: Its tokens so far, these included.
    """

    slot: int
    begin: int
    end: int
    context: int

    @property
    def start(self) -> int:
        """Position of its first token."""
        return self.context - (self.end - self.begin)


class PagedState:
    """See ``headrace.models.families.state.State``.

    Args:
        groups: The pages of each group.
        page_tables: int64 [handles] of each, byte offsets in the arena.
        page_rows: int32 [slots, pages] of each, handles of each slot's pages.
        rows: The batch's sequences.
    """

    def __init__(
        self,
        groups: Sequence[GroupPages],
        page_tables: Sequence[npt.NDArray[np.int64]],
        page_rows: Sequence[IntArray],
        rows: Sequence[Row],
    ) -> None:
        self._rows = rows
        self._by_layer: dict[int, _Tokens | _States] = {}
        for pages, table, handles in zip(groups, page_tables, page_rows, strict=True):
            kind = _Tokens if pages.layout.group.by_token else _States
            group = kind(pages, table, handles, rows)
            self._by_layer |= dict.fromkeys(pages.layout.group.layers, group)

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
        """See ``State``."""
        group = self._tokens(layer)
        group.store(layer, key=key, value=value)
        found = []
        for n, (row, mask) in enumerate(zip(self._rows, group.masks, strict=True)):
            keys, values = group.read(layer, n)
            found.append(_attention(query[row.begin : row.end], keys, values, mask, scale, sinks))
        return torch.cat(found)

    def attend_latent(self, layer: int, query: Tensor, latent: Tensor, *, value_dim: int, scale: float) -> Tensor:
        """See ``State``."""
        group = self._tokens(layer)
        group.store(layer, latent=latent)
        found = []
        for n, (row, mask) in enumerate(zip(self._rows, group.masks, strict=True)):
            (latents,) = group.read(layer, n)
            keys = latents[:, None]
            found.append(_attention(query[row.begin : row.end], keys, keys[..., :value_dim], mask, scale, None))
        return torch.cat(found)

    def recurrences(self, layer: int) -> list[PagedRecurrence]:
        """See ``State``."""
        group = self._by_layer[layer]
        if not isinstance(group, _States):
            raise RuntimeError(f"layer {layer} keeps no recurrent state")
        return list(group.each(layer))

    def _tokens(self, layer: int) -> _Tokens:
        group = self._by_layer[layer]
        if not isinstance(group, _Tokens):
            raise RuntimeError(f"layer {layer} keeps nothing of single tokens")
        return group


class _Tokens:
    """A group that keeps something of each token, during a step."""

    def __init__(self, pages: GroupPages, table: npt.NDArray[np.int64], handles: IntArray, rows: Sequence[Row]) -> None:
        self._pages = pages
        size, window = pages.layout.page_tokens, pages.layout.group.window
        self._reads: list[tuple[Tensor, Tensor, slice]] = []
        self.masks: list[Tensor | None] = []
        offsets, inside = [], []
        for row in rows:
            first = max(0, row.start - window + 1) if window else 0  # position of the first token that is seen
            seen = handles[row.slot, first // size : -(-row.context // size)]
            places = slice(first % size, first % size + row.context - first)
            self._reads.append((*pages.find(table[seen]), places))
            self.masks.append(_mask(row.end - row.begin, row.context - first, window))
            positions = np.arange(row.start, row.context)
            offsets.append(table[handles[row.slot, positions // size]])
            inside.append(positions % size)
        self._here = (*pages.find(np.concatenate(offsets)), torch.from_numpy(np.concatenate(inside)))

    def store(self, layer: int, **parts: Tensor) -> None:
        """Write what the batch's tokens keep."""
        slabs, pages, inside = self._here
        for name, values in parts.items():
            self._pages.parts[name][slabs, pages, self._pages.at[layer], inside] = values

    def read(self, layer: int, row: int) -> list[Tensor]:
        """``[tokens, *part.shape]`` of each part: what a sequence's tokens see."""
        slabs, pages, places = self._reads[row]
        at = self._pages.at[layer]
        names = [part.name for part in self._pages.layout.group.parts]
        return [self._pages.parts[name][slabs, pages, at].flatten(0, 1)[places] for name in names]


class _States:
    """A group that keeps one state of a sequence, during a step."""

    def __init__(self, pages: GroupPages, table: npt.NDArray[np.int64], handles: IntArray, rows: Sequence[Row]) -> None:
        self._pages, self._rows = pages, rows
        slots = [row.slot for row in rows]
        self._read = pages.find(table[handles[slots, READ]])
        self._write = pages.find(table[handles[slots, WRITE]])

    def each(self, layer: int) -> Iterator[PagedRecurrence]:
        at, parts = self._pages.at[layer], self._pages.parts
        for n, row in enumerate(self._rows):
            read, write = ((slabs[n], pages[n]) for slabs, pages in (self._read, self._write))
            state = {name: part[(*read, at)].clone() for name, part in parts.items()}
            if not row.start:  # what its page held before belongs to nobody
                state = {name: torch.zeros_like(values) for name, values in state.items()}
            into = {name: part[(*write, at)] for name, part in parts.items()}
            yield PagedRecurrence(row.begin, row.end, state, into)


@dataclass(frozen=True, slots=True)
class PagedRecurrence:
    """See ``headrace.models.families.state.Recurrence``."""

    begin: int
    end: int
    state: Mapping[str, Tensor]
    into: Mapping[str, Tensor]

    def keep(self, **state: Tensor) -> None:
        """See ``Recurrence``."""
        for name, values in state.items():
            self.into[name].copy_(values)


def _mask(count: int, seen: int, window: int) -> Tensor | None:
    """Bool [count, seen], true where a query sees a key; None where every query sees every key."""
    if count == 1:
        return None
    mask = torch.ones(count, seen, dtype=torch.bool).tril(seen - count)
    return mask.triu(seen - count - window + 1) if window else mask


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, sinks: Tensor | None
) -> Tensor:
    """[count, heads, value_dim]: attention of one sequence's new tokens over what they see."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    if sinks is None:
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)
    groups = len(q) // len(k)
    scores = q @ k.repeat_interleave(groups, 0).transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    sink = sinks[:, None, None].expand(-1, scores.shape[1], 1).to(scores.dtype)
    weights = torch.cat([scores, sink], dim=-1).softmax(-1, dtype=torch.float32).to(value.dtype)[..., :-1]
    return (weights @ v.repeat_interleave(groups, 0)).transpose(0, 1)
