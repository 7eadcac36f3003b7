"""Models whose state is of several kinds, and ways to divide an arena between the kinds: ours, and those of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.memory.page_form import PageForm
from headrace.memory.slabs import common_slab
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.configs.ssm import SSMConfig
from headrace.models.configs.windows import attention_groups
from headrace.models.spec import StateGroup, StatePart, attention_group
from headrace.runtime.state_layout import PAGE_TOKENS, StateLayout

ITEM_BYTES = 2  # bfloat16

Memory = TypeVar("Memory", bound=StateMemory)


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model matters here.

    Attributes:
        name: Whose dimensions these are.
        groups: What a sequence keeps.
        read_bytes: Bytes of weights that a step reads.
        arena_bytes: Of the arena it is tried with.
        longest: Tokens of the longest request, output included; its state is at most 1 % of the arena.
    """

    name: str
    groups: tuple[StateGroup, ...]
    read_bytes: float
    arena_bytes: int
    longest: int


def _gemma() -> Model:
    """Gemma 3 4B (arXiv 2503.19786): 34 layers, every sixth over all tokens, the others over 1,024."""
    windowed = tuple((layer + 1) % 6 != 0 for layer in range(34))
    return Model("gemma-3-4b", attention_groups(windowed, 1024, 4, 256), 8e9, 33 * 10**9, 3072)


def _granite() -> Model:
    """Granite 4.0 H Small: 40 layers, four of attention, 36 of Mamba-2; 9 of its 32 billion weights are active."""
    mixer = SSMConfig(4096, 128, 64, 128, 1, 4, conv_bias=True, proj_bias=False, norm_eps=1e-5)
    attention = (5, 15, 25, 35)
    mamba = (layer for layer in range(40) if layer not in attention)
    groups = attention_group("full", attention, 8, 128), mixer.state_group(mamba)
    return Model("granite-4-h-small", groups, 64e9, 48 * 10**9, 8192)


def _deepseek() -> Model:
    """DeepSeek-V3 (arXiv 2412.19437), a node's part of the weights: 61 layers of 512 + 64 elements a token."""
    group = StateGroup("latent", tuple(range(61)), (StatePart("latent", (576,)),))
    return Model("deepseek-v3", (group,), 84e9, 30 * 10**9, 4096)


MODELS = {model.name: model for model in (_gemma(), _granite(), _deepseek())}


def _page_bytes(group: StateGroup, page_tokens: int = PAGE_TOKENS) -> int:
    return StateLayout(group, page_tokens if group.by_token else 1, ITEM_BYTES).page_bytes


def ours(kind: type[Memory], groups: Sequence[StateGroup], nbytes: int, *, prefix_cache: bool) -> Memory:
    """Pages of each group's own size, in slabs that go where they are needed."""
    sizes = [_page_bytes(group) for group in groups]
    members = _members(groups, sizes, common_slab(sizes, nbytes))
    return kind(members, nbytes=nbytes, page_tokens=PAGE_TOKENS, prefix_cache=prefix_cache)


def split(kind: type[Memory], groups: Sequence[StateGroup], nbytes: int, share: float, *, prefix_cache: bool) -> Memory:
    """The same pages, and a fixed part of the arena for each of two groups: ``share`` for the first.

    TensorRT-LLM divides its memory so (its documentation, "KV Cache System").
    """
    sizes = [_page_bytes(group) for group in groups]
    most = [max(1, int(nbytes * part / size)) for part, size in zip((share, 1 - share), sizes, strict=True)]
    members = _members(groups, sizes, common_slab(sizes, nbytes))
    slabs = sum(-(-count // member.form.slab_pages) for count, member in zip(most, members, strict=True))
    nbytes = slabs * members[0].form.slab_bytes
    return kind(members, nbytes=nbytes, page_tokens=PAGE_TOKENS, most_pages=most, prefix_cache=prefix_cache)


def one_size(
    kind: type[Memory],
    groups: Sequence[StateGroup],
    nbytes: int,
    *,
    prefix_cache: bool,
    grouped: bool = True,
    states: int = 1,
) -> Memory:
    """Pages of one size for all kinds.

    vLLM (docs/design/hybrid_kv_cache_manager.md, cases 3 and 4) takes layers of one kind together, as many as the
    rarest kind has, and pads the last such group; a page of attention gets more tokens, until it is as large as a
    recurrent state of as many layers. A sequence whose prefix may be cached holds two of those
    (``MambaSpec.max_memory_usage_bytes`` in vllm/v1/kv_cache_interface.py, mode ``align``).

    Args:
        kind: Class of the memory.
        groups: The model's.
        nbytes: Of the arena.
        prefix_cache: Keep prefixes.
        grouped: Else a group's layers stay together, and its pages are padded to the largest.
        states: Pages that a sequence holds of each recurrent group.
    """
    layers = min(len(group.layers) for group in groups)
    parts = [replace(group, layers=group.layers[:layers]) for group in groups] if grouped else groups
    state = max((_page_bytes(part) for part in parts if not part.by_token), default=0)
    page_tokens = max(PAGE_TOKENS * math.ceil(state / _page_bytes(part)) for part in parts if part.by_token)
    page_tokens = max(page_tokens, PAGE_TOKENS)
    size = max(_page_bytes(part, page_tokens) for part in parts)
    split_parts = []
    for group in groups:
        count = math.ceil(len(group.layers) / layers) if grouped else 1
        split_parts += [group] * (count if group.by_token else count * states)
    members = _members(split_parts, [size] * len(split_parts), size)
    return kind(members, nbytes=nbytes, page_tokens=page_tokens, prefix_cache=prefix_cache)


def windows_kept(groups: Sequence[StateGroup]) -> tuple[StateGroup, ...]:
    """Windows kept whole like attention over all tokens, as vLLM did before it had groups."""
    return tuple(replace(group, window=0) for group in groups)


def _members(groups: Sequence[StateGroup], sizes: Sequence[int], slab: int) -> list[MemoryGroup]:
    return [
        MemoryGroup(group.by_token, PageForm.of(1, [(1, size)]).in_slabs(slab), group.window)
        for group, size in zip(groups, sizes, strict=True)
    ]
