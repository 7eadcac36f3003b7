"""``StoredContext``: what a response goes on from, and where it is kept."""

from __future__ import annotations

import msgspec

from headrace.api.errors import bad_request
from headrace.api.responses.items import InputItem, ItemReference
from headrace.api.responses.output import Response
from headrace.api.responses.request import PromptFields
from headrace.gateway.response_conversation import listed, own_items
from headrace.gateway.response_store import Owner, ResponseStore, StoredResponse


class _Kept(msgspec.Struct):
    """What a stored response adds to a conversation."""

    output: list[InputItem]


_given = msgspec.json.Decoder(list[InputItem])
_kept = msgspec.json.Decoder(_Kept)


class StoredContext:
    """The stored responses of whoever asks.

    Args:
        store: All of them.
        owner: Whose key was shown.

    Attributes:
        bytes_read: What was read of the store.
    """

    def __init__(self, store: ResponseStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self.bytes_read = 0

    def items(self, request: PromptFields) -> list[InputItem]:
        """The items of a request: those of the responses before it, and its own, without references.

        Raises:
            ApiError: 400, there is no such response, or no such item.
        """
        before: list[InputItem] = []
        previous = request.previous_response_id
        if previous is not None:
            stored = self._store.get(self._owner, previous)
            if stored is None:
                message = f"Previous response with id {previous[:100]!r} not found."
                raise bad_request(message, param="previous_response_id", code="previous_response_not_found")
            before = self._read(stored)
        own = own_items(request)
        return [*before, *(self._resolved(item, i) for i, item in enumerate(own))]

    def keep(self, response: Response, items: list[InputItem]) -> None:
        """Keep a response that was given ``items``."""
        given = [listed(item) for item in items]
        ids = tuple(item.id for item in (*given, *response.output))
        stored = StoredResponse(msgspec.json.encode(response), msgspec.json.encode(given), ids)
        self._store.put(self._owner, response.id, stored)

    def _read(self, stored: StoredResponse) -> list[InputItem]:
        self.bytes_read += stored.size
        return [*_given.decode(stored.given), *_kept.decode(stored.response).output]

    def _resolved(self, item: InputItem, index: int) -> InputItem:
        if not isinstance(item, ItemReference):
            return item
        stored = self._store.holder(self._owner, item.id)
        for known in [] if stored is None else self._read(stored):
            if known.id == item.id:
                return known
        message = f"Item with id {item.id[:100]!r} not found."
        raise bad_request(message, param=f"input[{index}].id", code="item_not_found")
