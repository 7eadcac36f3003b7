"""What an e-graph is made of: ``Head``, ``ENode``, ``EClass``, under an order that no run and no machine changes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from typing import Any, NamedTuple

from headrace.errors import HeadraceError

ClassId = int
"""Names an e-class. Ids of merged classes stay valid: ``EGraph.find`` tells which class they became."""

Key = tuple[Any, ...]


class EGraphError(HeadraceError):
    """The e-graph was asked for something that it cannot do, or its limits were reached."""


def order_key(value: object) -> Key:
    """A key by which attributes of any kinds have one total order, and equal keys mean interchangeable values.

    Python's own equality will not do: there ``1 == 1.0 == True`` and ``0.0 == -0.0`` but ``nan != nan``, while a
    constant 1 and a constant 1.0 are different programs. A string enum counts as its string.

    Raises:
        EGraphError: The value is of a kind without such an order.
    """
    match value:
        case None:
            return (0,)
        case bool():
            return (1, value)
        case enum.Enum() if not isinstance(value, (str, int)):
            return (7, type(value).__qualname__, value.name)
        case int():
            return (2, int(value))
        case float():
            return (3, _float_key(value))
        case str():
            return (4, str.__str__(value))
        case bytes():
            return (5, value)
        case tuple():
            return (6, tuple(map(order_key, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_frozen(value):
        fields = tuple(order_key(getattr(value, field.name)) for field in dataclasses.fields(value))
        return (8, type(value).__qualname__, fields)
    raise EGraphError(
        f"an attribute is a {type(value).__name__}, which has no fixed order: use None, bool, int, float, str, bytes, "
        "an enum, a tuple or a frozen dataclass of these"
    )


def _float_key(value: float) -> int:
    """The bits as an integer that orders like the value: -nan < -inf < ... < -0.0 < 0.0 < ... < inf < nan."""
    (bits,) = struct.unpack(">q", struct.pack(">d", value))
    return int(bits) if bits >= 0 else -1 - (int(bits) & 0x7FFF_FFFF_FFFF_FFFF)


def _is_frozen(value: Any) -> bool:
    return bool(value.__dataclass_params__.frozen)


@functools.total_ordering
class Head:
    """What an e-node computes with its children: an operation and its attributes. Immutable.

    Attributes:
        op: Name of the operation; patterns are indexed by it.
        attrs: Attributes, of the kinds that ``order_key`` knows.
        key: Equality, order and hash rest on it.
    """

    __slots__ = ("_hash", "attrs", "key", "op")

    def __init__(self, op: str, attrs: tuple[Any, ...] = ()) -> None:
        self.op = op
        self.attrs = attrs
        self.key: tuple[str, tuple[Key, ...]] = (op, tuple(map(order_key, attrs)))
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Head) and self.key == other.key)

    def __lt__(self, other: Head) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.op}[{', '.join(map(repr, self.attrs))}]" if self.attrs else str(self.op)


class ENode(NamedTuple):
    """An operation on e-classes."""

    head: Head
    children: tuple[ClassId, ...] = ()

    def __repr__(self) -> str:
        return f"{self.head}({', '.join(map(str, self.children))})" if self.children else repr(self.head)


class Union(NamedTuple):
    """Two classes that became one, and why."""

    left: ClassId
    right: ClassId
    because: str


class EClass:
    """Nodes that are equal.

    Attributes:
        nodes: Sorted after a rebuild.
        parents: Numbers of the nodes that have this class as a child.
        facts: One for each analysis.
        changed: The graph's clock when ``nodes`` last changed.
    """

    __slots__ = ("changed", "facts", "nodes", "parents")

    def __init__(self, node: ENode, facts: list[Any], clock: int) -> None:
        self.nodes = [node]
        self.parents: list[int] = []
        self.facts = facts
        self.changed = clock
