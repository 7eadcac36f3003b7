"""``StateLayout``: what the bytes of a page mean. Only executors know; ``memory/`` moves pages unread."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.memory.page_form import PageForm
from headrace.models.spec import ModelSpec, StateGroup

PAGE_TOKENS = 16
SLAB_PAGES = 16


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A page of full-attention state: ``[layers, 2 (key, value), page_tokens, heads, head_dim]``.

    Attributes:
        group: The state kept.
        page_tokens: Tokens of a page.
        item_bytes: Bytes of an element.
    """

    group: StateGroup
    page_tokens: int
    item_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.group.elements_per_token() * self.page_tokens * self.item_bytes

    @property
    def form(self) -> PageForm:
        """Pages in one piece."""
        return PageForm(SLAB_PAGES, ((1, self.page_bytes),))

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Shape of a page's elements."""
        return self.group.layers, 2, self.page_tokens, self.group.heads, self.group.key_dim


def state_layout(spec: ModelSpec, item_bytes: int) -> StateLayout:
    """The layout of a model's pages, given the bytes of an element."""
    (group,) = spec.state_groups
    return StateLayout(group, PAGE_TOKENS, item_bytes)
