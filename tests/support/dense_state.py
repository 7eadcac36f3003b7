"""A family's ``State`` without pages: all that sequences keep, whole, in one tensor for each layer and part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.spec import StateGroup


def full_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int = 0, scale: float | None = None, sinks: Tensor | None = None
) -> Tensor:
    """``[n, heads, value_dim]``: the last ``n`` tokens of a sequence over all of it, straight from the definition.

    Args:
        query: ``[n, heads, dim]``.
        key: ``[context, kv_heads, dim]``.
        value: ``[context, kv_heads, value_dim]``.
        window: Tokens that each sees, itself included; 0: all up to itself.
        scale: Of the scores.
        sinks: ``[heads]``.
    """
    count, heads, dim = query.shape
    context, groups = key.shape[0], heads // key.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys.float()) * (scale or 1 / math.sqrt(dim))
    at = torch.arange(context)
    distance = at[context - count :, None] - at[None, :]
    hidden = (distance < 0) | (distance >= window if window else torch.zeros_like(distance, dtype=torch.bool))
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(heads, count, 1)], dim=-1)
    weights = scores.softmax(-1)[..., :context]
    return torch.einsum("hqk,khd->qhd", weights, values.float()).to(query.dtype)


@dataclass
class _Recurrence:
    begin: int
    end: int
    state: Mapping[str, Tensor]
    kept: dict[str, Tensor]

    def keep(self, **state: Tensor) -> None:
        for name, now in state.items():
            assert now.shape == self.state[name].shape, f"{name} changed its shape"
            self.kept[name] = now.clone()


class DenseState:
    """What any number of sequences keep.

    Args:
        groups: The model's.
        dtype: Of what is not wide.
    """

    def __init__(self, groups: Sequence[StateGroup], dtype: torch.dtype = torch.float32) -> None:
        self.groups = {layer: group for group in groups for layer in group.layers}
        self.dtype = dtype
        self.kept: dict[tuple[object, int], dict[str, Tensor]] = {}
        self.lengths: dict[object, int] = {}
        self.rows: list[tuple[object, int, int]] = []

    def step(self, model, *pieces: tuple[object, Sequence[int]]) -> list[Tensor]:
        """One forward of a ragged batch: the next tokens of some sequences; the logits of each.

        Args:
            model: A ``FamilyModel``.
            pieces: Any name of each sequence, and its next tokens.
        """
        self.rows, positions, at = [], [], 0
        for name, tokens in pieces:
            self.rows.append((name, at, at + len(tokens)))
            at += len(tokens)
            start = self.lengths.get(name, 0)
            positions += range(start, start + len(tokens))
            self.lengths[name] = start + len(tokens)
        with torch.inference_mode():
            tokens = torch.tensor([token for _, some in pieces for token in some])
            logits = model.logits(model.hidden(tokens, torch.tensor(positions), self))
        return [logits[begin:end] for _, begin, end in self.rows]

    def attend(self, layer, query, key, value, *, scale=None, sinks=None):
        group = self.groups[layer]
        assert group.kind in ("full", "window")
        assert [part.shape for part in group.parts] == [key.shape[1:], value.shape[1:]]
        found = []
        for name, begin, end in self.rows:
            keys, values = self._longer(name, layer, key=key[begin:end], value=value[begin:end])
            found.append(full_attention(query[begin:end], keys, values, group.window, scale, sinks))
        return torch.cat(found)

    def attend_latent(self, layer, query, latent, *, value_dim, scale):
        group = self.groups[layer]
        assert group.kind == "latent"
        assert [part.shape for part in group.parts] == [latent.shape[1:]]
        found = []
        for name, begin, end in self.rows:
            (all_latents,) = self._longer(name, layer, latent=latent[begin:end])
            keys = all_latents[:, None, :]
            found.append(full_attention(query[begin:end], keys, keys[..., :value_dim], 0, scale))
        return torch.cat(found)

    def recurrences(self, layer):
        group = self.groups[layer]
        assert group.kind == "recurrent"
        found = []
        for name, begin, end in self.rows:
            fresh = {p.name: torch.zeros(p.shape, dtype=torch.float32 if p.wide else self.dtype) for p in group.parts}
            kept = self.kept.setdefault((name, layer), fresh)
            found.append(_Recurrence(begin, end, dict(kept), kept))
        return found

    def _longer(self, name, layer, **new: Tensor) -> list[Tensor]:
        kept = self.kept.setdefault((name, layer), {})
        for part, some in new.items():
            kept[part] = torch.cat([kept[part], some]) if part in kept else some
        return list(kept.values())
