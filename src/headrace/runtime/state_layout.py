"""``StateLayout``: what the bytes of a page mean. Only executors know; ``memory/`` moves pages unread."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.memory.page_form import PageForm
from headrace.models.spec import ModelSpec, StateGroup, StatePart

PAGE_TOKENS = 16
SLAB_PAGES = 16
ALIGNMENT = 8  # so that every page begins at a whole element


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a part of a group lies in a page.

    Attributes:
        part: The part.
        begin: Its first byte.
        shape: ``[layers, *part.shape]``, or ``[layers, page_tokens, *part.shape]`` if each token has its own.
    """

    part: StatePart
    begin: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A page of a group's state, in one piece: its parts one after the other, those in float32 first.

    Attributes:
        group: The state kept.
        page_tokens: Tokens of a page; 1 if a page holds a whole recurrent state.
        item_bytes: Bytes of an element that is not wide.
    """

    group: StateGroup
    page_tokens: int
    item_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, a multiple of ``ALIGNMENT``."""
        return -(-self.group.item_bytes(self.item_bytes) * self.page_tokens // ALIGNMENT) * ALIGNMENT

    @property
    def form(self) -> PageForm:
        """Pages in one piece."""
        return PageForm.of(SLAB_PAGES, [(1, self.page_bytes)])

    def places(self) -> tuple[PartPlace, ...]:
        """Where each part lies."""
        found, begin = [], 0
        tokens = (self.page_tokens,) if self.group.by_token else ()
        for part in sorted(self.group.parts, key=lambda part: not part.wide):
            shape = (len(self.group.layers), *tokens, *part.shape)
            found.append(PartPlace(part, begin, shape))
            begin += math.prod(shape) * (4 if part.wide else self.item_bytes)
        return tuple(found)


def state_layouts(spec: ModelSpec, item_bytes: int) -> tuple[StateLayout, ...]:
    """The layouts of a model's pages, group by group, given the bytes of an element."""
    return tuple(StateLayout(g, PAGE_TOKENS if g.by_token else 1, item_bytes) for g in spec.state_groups)
