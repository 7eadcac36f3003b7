"""``ResponseStore``: responses that may be read again and continued, in memory, for a while."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

Owner = str | None
"""Whose key was shown; None: there are no keys."""


BYTES_AN_ITEM = 300
"""An id, and its entry in a dictionary."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response. JSON, so that its size is known and nothing else is kept alive.

    Attributes:
        response: The response.
        given: A list of the items that it was given, with those of the responses before it.
        item_ids: Of those items and of its own.
    """

    response: bytes
    given: bytes
    item_ids: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes, with what it takes to find the items."""
        return len(self.response) + len(self.given) + BYTES_AN_ITEM * len(self.item_ids)


class ResponseStore:
    """Responses by owner and id; the least recently used go when there is no room.

    Args:
        max_bytes: Most bytes that responses may take together; a larger one is not kept.
        max_responses: Most responses.
    """

    def __init__(self, max_bytes: int, max_responses: int) -> None:
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._stored: OrderedDict[tuple[Owner, str], StoredResponse] = OrderedDict()
        self._holders: dict[tuple[Owner, str], str] = {}  # of items
        self.size = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._stored)

    def put(self, owner: Owner, identifier: str, stored: StoredResponse) -> None:
        """Keep a response, if there can be room for it."""
        self.delete(owner, identifier)
        if stored.size > self._max_bytes or not self._max_responses:
            return
        while self.size + stored.size > self._max_bytes or len(self._stored) >= self._max_responses:
            self.delete(*next(iter(self._stored)))
        self._stored[owner, identifier] = stored
        self._holders.update(((owner, item), identifier) for item in stored.item_ids)
        self.size += stored.size

    def get(self, owner: Owner, identifier: str) -> StoredResponse | None:
        """A response; it was used now."""
        stored = self._stored.get((owner, identifier))
        if stored is not None:
            self._stored.move_to_end((owner, identifier))
        return stored

    def holder(self, owner: Owner, item: str) -> StoredResponse | None:
        """The last response that holds an item; it was used now."""
        identifier = self._holders.get((owner, item))
        return None if identifier is None else self.get(owner, identifier)

    def delete(self, owner: Owner, identifier: str) -> bool:
        """Forget a response; returns whether there was one."""
        stored = self._stored.pop((owner, identifier), None)
        if stored is None:
            return False
        self.size -= stored.size
        for item in stored.item_ids:
            if self._holders.get((owner, item)) == identifier:
                del self._holders[owner, item]
        return True
