"""Models whose state is of several kinds, and ways to divide an arena between the kinds: ours, and those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.memory.page_form import PageForm
from headrace.memory.slabs import common_slab
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.configs.ssm import SSMConfig
from headrace.models.configs.windows import attention_groups
from headrace.models.spec import StateGroup, StatePart, attention_group
from headrace.runtime.state_layout import PAGE_TOKENS, StateLayout

ITEM_BYTES = 2  # bfloat16

# Makes the memory of a scheme out of (groups, bytes, whether prefixes are kept).
Build = Callable[..., StateMemory]


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model matters here.

    Attributes:
        name: Whose dimensions these are.
        groups: What a sequence keeps.
        read_bytes: Bytes of weights that a step reads.
        arena_bytes: Of the arena it is tried with.
    """

    name: str
    groups: tuple[StateGroup, ...]
    read_bytes: float
    arena_bytes: int


def _gemma() -> Model:
    """Gemma 3 4B (arXiv 2503.19786): 34 layers, every sixth over all tokens, the others over 1,024."""
    windowed = tuple((layer + 1) % 6 != 0 for layer in range(34))
    return Model("gemma-3-4b", attention_groups(windowed, 1024, 4, 256), 8e9, 32 * 10**9)


def _granite() -> Model:
    """Granite 4.0 H Small: 40 layers, four of attention, 36 of Mamba-2; 9 of its 32 billion weights are active."""
    mixer = SSMConfig(4096, 128, 64, 128, 1, 4, conv_bias=True, proj_bias=False, norm_eps=1e-5)
    attention = (5, 15, 25, 35)
    mamba = (layer for layer in range(40) if layer not in attention)
    groups = attention_group("full", attention, 8, 128), mixer.state_group(mamba)
    return Model("granite-4-h-small", groups, 64e9, 48 * 10**9)


def _deepseek() -> Model:
    """DeepSeek-V3 (arXiv 2412.19437), a node's part of the weights: 61 layers of 512 + 64 elements a token."""
    group = StateGroup("latent", tuple(range(61)), (StatePart("latent", (576,)),))
    return Model("deepseek-v3", (group,), 84e9, 30 * 10**9)


MODELS = {model.name: model for model in (_gemma(), _granite(), _deepseek())}


def _page_bytes(group: StateGroup, page_tokens: int = PAGE_TOKENS) -> int:
    return StateLayout(group, page_tokens if group.by_token else 1, ITEM_BYTES).page_bytes


def ours(groups: Sequence[StateGroup], nbytes: int, **options: bool) -> StateMemory:
    """Pages of each group's own size, in slabs that go where they are needed."""
    return arena_memory(StateMemory, groups, nbytes, **options)


def arena_memory(
    kind: type[StateMemory], groups: Sequence[StateGroup], nbytes: int, **options: bool
) -> StateMemory:
    """``ours``, as a subclass of ``StateMemory``."""
    sizes = [_page_bytes(group) for group in groups]
    slab = common_slab(sizes, nbytes)
    members = [
        MemoryGroup(group.by_token, PageForm.of(1, [(1, size)]).in_slabs(slab), group.window)
        for group, size in zip(groups, sizes, strict=True)
    ]
    return kind(members, nbytes=nbytes, page_tokens=PAGE_TOKENS, **options)


def split(groups: Sequence[StateGroup], nbytes: int, share: float, **options: bool) -> StateMemory:
    """A fixed part of the arena for each of two groups, as in TensorRT-LLM (docs, "KV Cache System"): ``share`` for
    the first.
    """
    sizes = [_page_bytes(group) for group in groups]
    parts = [nbytes * share, nbytes * (1 - share)] if len(groups) > 1 else [nbytes]
    most = [max(1, int(part / size)) for part, size in zip(parts, sizes, strict=True)]
    slab = common_slab(sizes, nbytes)
    forms = [PageForm.of(1, [(1, size)]).in_slabs(slab) for size in sizes]
    members = [MemoryGroup(g.by_token, form, g.window) for g, form in zip(groups, forms, strict=True)]
    slabs = sum(-(-count // form.slab_pages) for count, form in zip(most, forms, strict=True))
    return StateMemory(members, nbytes=slabs * slab, page_tokens=PAGE_TOKENS, most_pages=most, **options)


def one_size(groups: Sequence[StateGroup], nbytes: int, **options: bool) -> StateMemory:
    """Pages of one size for all, as in vLLM (docs/design/hybrid_kv_cache_manager.md, cases 3 and 4).

    Layers of one kind are taken together, as many as the rarest kind has; the last such group of a kind is padded.
    A page of attention has more tokens, until it is as large as a recurrent state of as many layers.
    """
    layers = min(len(group.layers) for group in groups)
    parts = [replace(group, layers=group.layers[:layers]) for group in groups]
    page_tokens = PAGE_TOKENS
    state = max((_page_bytes(part) for part in parts if not part.by_token), default=0)
    for part in parts:
        if part.by_token and state:
            page_tokens = math.ceil(state / _page_bytes(part)) * PAGE_TOKENS
    size = max(_page_bytes(part, page_tokens) for part in parts)
    form = PageForm.of(1, [(1, size)])
    members = [
        MemoryGroup(group.by_token, form, group.window)
        for group in groups
        for _ in range(math.ceil(len(group.layers) / layers))
    ]
    return StateMemory(members, nbytes=nbytes, page_tokens=page_tokens, **options)


def windows_kept(groups: Sequence[StateGroup], nbytes: int, **options: bool) -> StateMemory:
    """One page size, and windows treated like attention over all tokens, as before vLLM had groups."""
    return one_size([replace(group, window=0) for group in groups], nbytes, **options)
