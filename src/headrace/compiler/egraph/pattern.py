"""Patterns, and how they are found in an e-graph.

A pattern is compiled to a list of steps over a row of registers, of which the first holds the class that the pattern
may start at. ``Node("mul", (), (Var("x"), Node("add", (), (Var("x"), Var("y")))))`` becomes::

    Open  0, mul   for each such node of class 0, append its head and children: registers 1, 2, 3
    Open  3, add   likewise: 4, 5, 6
    Same  2, 5     keep the rows in which both are one class

Each step maps a list of rows to a list of rows, and keeps their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.compiler.egraph.graph import EGraph
from headrace.compiler.egraph.node import ClassId, EGraphError, Head, Key, order_key

Row = tuple[Any, ...]

CHUNK = 256
"""Roots that a search looks at together."""


class PatternError(EGraphError):
    """A pattern or a rule does not make sense."""


@dataclass(frozen=True, slots=True)
class Var:
    """Any class; the same one wherever the name stands."""

    name: str


@dataclass(frozen=True, slots=True)
class Attr:
    """Any value of an attribute, the same one wherever the name stands. As ``Node.attrs`` itself: any tuple of them."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """A class with a node of this operation, with these attributes and children.

    Attributes:
        head: Operation and attributes, when all of these are given.
    """

    op: str
    attrs: tuple[Any, ...] | Attr = ()
    children: tuple[Pattern, ...] = ()
    head: Head | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        head = None
        if not isinstance(self.attrs, Attr) and not any(isinstance(attr, Attr) for attr in self.attrs):
            head = Head(self.op, self.attrs)
        object.__setattr__(self, "head", head)


Pattern = Var | Node


class Match(dict[str, Any]):
    """Where a pattern was found: class ids by the names of ``Var``, values by those of ``Attr``.

    Attributes:
        root: The class that the whole pattern stands for.
    """

    __slots__ = ("root",)

    def __init__(self, root: ClassId, bindings: Mapping[str, Any] | None = None) -> None:
        super().__init__(bindings or {})
        self.root = root


@dataclass(frozen=True, slots=True)
class Open:
    """For each fitting node of the class in a register, append its head and its children to the row.

    Attributes:
        register: Which.
        op: Of the node.
        arity: Number of children.
        head: The whole head, when the pattern gives all attributes.
        count: Number of attributes, unless any will do.
        literals: Position and key of those that are given.
    """

    register: int
    op: str
    arity: int
    head: Head | None
    count: int | None
    literals: tuple[tuple[int, Key], ...]

    def run(self, graph: EGraph, rows: list[Row]) -> list[Row]:
        """All rows that go on."""
        op, arity, register, eclasses = self.op, self.arity, self.register, graph.eclasses
        if self.head is None:
            return [
                (*row, node.head, *node.children)
                for row in rows
                for node in eclasses[row[register]].nodes
                if node.head.op == op and len(node.children) == arity and self._fits(node.head)
            ]
        head = graph.interned(self.head)
        return [
            (*row, head, *node.children)
            for row in rows
            for node in eclasses[row[register]].nodes
            if node.head is head and len(node.children) == arity
        ]

    def _fits(self, head: Head) -> bool:
        keys = head.key[1]
        if self.count is not None and len(keys) != self.count:
            return False
        return all(keys[position] == key for position, key in self.literals)


@dataclass(frozen=True, slots=True)
class Same:
    """Keep the rows in which two registers hold one class."""

    left: int
    right: int

    def run(self, graph: EGraph, rows: list[Row]) -> list[Row]:
        """All rows that go on."""
        return [row for row in rows if row[self.left] == row[self.right]]


Place = tuple[int, int | None]
"""Where an attribute stands: register of a head, position in it (None: all of them)."""


@dataclass(frozen=True, slots=True)
class SameAttr:
    """Keep the rows in which two attributes are interchangeable."""

    left: Place
    right: Place

    def run(self, graph: EGraph, rows: list[Row]) -> list[Row]:
        """All rows that go on."""
        return [row for row in rows if _key(row, self.left) == _key(row, self.right)]


def _key(row: Row, place: Place) -> Key:
    keys: Key = row[place[0]].key[1]
    return (6, keys) if place[1] is None else keys[place[1]]


@dataclass(slots=True)
class Matcher:
    """A pattern, ready to be looked for.

    Attributes:
        variables: Register of each ``Var``.
        attributes: Place of each ``Attr``.
        width: Registers of a row.
        levels: How far below the root there are nodes to open.
    """

    op: str | None
    steps: list[Open | Same | SameAttr] = field(default_factory=list)
    variables: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, Place] = field(default_factory=dict)
    width: int = 1
    levels: int = 0

    @classmethod
    def of(cls, pattern: Pattern) -> Matcher:
        """Compile a pattern.

        Raises:
            PatternError: A name stands for a class and for an attribute, or a literal is of no kind known.
        """
        matcher = cls(pattern.op if isinstance(pattern, Node) else None)
        todo: list[tuple[int, int, Pattern]] = [(0, 0, pattern)]
        while todo:
            # Breadth first: all that one node tells is compared before the next one is opened.
            register, level, part = todo.pop(0)
            if isinstance(part, Node):
                matcher.levels = level
                todo.extend((child, level + 1, below) for child, below in matcher._open(register, part))
            elif part.name in matcher.variables:
                matcher.steps.append(Same(matcher.variables[part.name], register))
            else:
                matcher.variables[part.name] = register
        both = matcher.variables.keys() & matcher.attributes.keys()
        if both:
            raise PatternError(f"{min(both)!r} stands for a class and for an attribute: use two names")
        return matcher

    def _open(self, register: int, node: Node) -> list[tuple[int, Pattern]]:
        attrs = () if isinstance(node.attrs, Attr) else node.attrs
        literals = tuple((i, order_key(attr)) for i, attr in enumerate(attrs) if not isinstance(attr, Attr))
        count = None if isinstance(node.attrs, Attr) else len(attrs)
        at, arity = self.width, len(node.children)
        self.steps.append(Open(register, node.op, arity, node.head, count, literals))
        self.width += 1 + arity
        named: list[tuple[Attr, int | None]] = [(a, i) for i, a in enumerate(attrs) if isinstance(a, Attr)]
        if isinstance(node.attrs, Attr):
            named = [(node.attrs, None)]
        for attr, position in named:
            place = (at, position)
            known = self.attributes.setdefault(attr.name, place)
            if known != place:
                self.steps.append(SameAttr(known, place))
        # A variable may end the row with one comparison: it goes before the nodes beside it.
        return sorted(enumerate(node.children, at + 1), key=lambda child: isinstance(child[1], Node))

    def rows(self, graph: EGraph, limit: int, since: int = 0) -> tuple[list[Row], bool]:
        """The rows of all matches in a rebuilt graph, ordered by root and then by the nodes tried.

        Args:
            graph: Where to look.
            limit: See below.
            since: What was there at this time of the graph's clock may be left out.

        Returns:
            Rows, at most ``limit``, and whether these are all. A search that holds more than ``limit`` unfinished
            rows of one root is given up too: it would not end in useful time.
        """
        roots = graph.classes() if self.op is None else graph.having(self.op)
        if since:
            recent = graph.recent(since, self.levels)
            roots = [root for root in roots if root in recent]
        found: list[Row] = []
        todo = [roots[start : start + CHUNK] for start in range(0, len(roots), CHUNK)][::-1]
        while todo:
            some = todo.pop()
            rows = self._run(graph, [(root,) for root in some], limit)
            if rows is not None:
                found += rows
                if len(found) > limit:
                    return found[:limit], False
            elif len(some) > 1:
                todo += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                return found, False
        return found, True

    def _run(self, graph: EGraph, rows: list[Row], limit: int) -> list[Row] | None:
        for step in self.steps:
            rows = step.run(graph, rows)
            if len(rows) > limit:
                return None
        return rows

    def is_current(self, graph: EGraph, row: Row) -> bool:
        """Whether a row that was found earlier names all classes as they are named now."""
        return all(isinstance(each, Head) or graph.find(each) == each for each in row)

    def match(self, row: Row) -> Match:
        """A row by names."""
        match = Match(row[0], {name: row[register] for name, register in self.variables.items()})
        for name, (register, position) in self.attributes.items():
            attrs = row[register].attrs
            match[name] = attrs if position is None else attrs[position]
        return match


def find_all(graph: EGraph, pattern: Pattern, limit: int = 100_000) -> list[Match]:
    """All matches of a pattern in a rebuilt graph.

    Raises:
        EGraphError: There are more than ``limit``.
    """
    matcher = Matcher.of(pattern)
    rows, complete = matcher.rows(graph, limit)
    if not complete:
        raise EGraphError(f"the pattern has more than {limit} matches: narrow it or raise the limit")
    return [matcher.match(row) for row in rows]


def build(graph: EGraph, pattern: Pattern, bindings: Mapping[str, Any]) -> ClassId:
    """Add what a pattern says, with its names replaced.

    Raises:
        PatternError: A name is not bound.
    """
    try:
        if isinstance(pattern, Var):
            return graph.find(bindings[pattern.name])
        head = pattern.head or Head(pattern.op, _attrs(pattern.attrs, bindings))
    except KeyError as error:
        raise PatternError(f"{error.args[0]!r} is not bound: it does not stand on the left side") from None
    return graph.add(head, [build(graph, child, bindings) for child in pattern.children])


def _attrs(attrs: tuple[Any, ...] | Attr, bindings: Mapping[str, Any]) -> tuple[Any, ...]:
    if isinstance(attrs, Attr):
        return tuple(bindings[attrs.name])
    return tuple(bindings[attr.name] if isinstance(attr, Attr) else attr for attr in attrs)


def names(pattern: Pattern) -> tuple[set[str], set[str]]:
    """The names of a pattern's classes and of its attributes."""
    matcher = Matcher.of(pattern)
    return set(matcher.variables), set(matcher.attributes)
