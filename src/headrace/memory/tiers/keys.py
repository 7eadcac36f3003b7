"""Names of what is stored: digests of everything that its bytes depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass

import msgspec

from headrace.memory.commands import IntArray

DIGEST_BYTES = 16
GROUP_BYTES = 2
KEY_BYTES = DIGEST_BYTES + GROUP_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """What pages of two models have in common when the bytes of one serve the other.

    Attributes:
        weights: Names the contents of the weights.
        layout: Names the layout: forms of all groups, tokens of a page, element types.
        numerics: Names the order of every reduction.
    """

    weights: str
    layout: str
    numerics: str

    @property
    def digest(self) -> bytes:
        """16 bytes; the name of a folder, in hexadecimal."""
        return _digest(msgspec.msgpack.encode((self.weights, self.layout, self.numerics)))


def root_digest(identity: Identity, key: Hashable) -> bytes:
    """Where the chain of a prefix begins.

    Args:
        identity: The model's.
        key: Of the tree's root, made of strings, bytes, numbers, None and tuples of them: tenant salt, adapter.
    """
    return _digest(identity.digest + msgspec.msgpack.encode(key))


def page_digests(root: bytes, tokens: IntArray, page_tokens: int) -> list[bytes]:
    """A digest for each whole page: of its tokens and all before them.

    Somebody who chooses tokens must not be able to find two chains with one digest, so a cryptographic hash it is.

    Args:
        root: Digest that stands for what is before the first page.
        tokens: int32 [n].
        page_tokens: Tokens of a page.
    """
    data, step = tokens.astype("<i4", copy=False).tobytes(), 4 * page_tokens
    found, last = [], root
    for begin in range(0, len(data) - step + 1, step):
        last = _digest(last + data[begin : begin + step])
        found.append(last)
    return found


def object_key(digest: bytes, group: int) -> bytes:
    """Names a page of a group, or its state, at the end of a prefix."""
    return digest + group.to_bytes(GROUP_BYTES, "little")


def group_of(key: bytes) -> int:
    """The group whose page a key names."""
    return int.from_bytes(key[DIGEST_BYTES:], "little")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
