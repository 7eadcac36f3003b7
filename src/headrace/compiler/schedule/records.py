"""Weights that are read together lie together: codes, scales and minima of a product, block by block.

Memory gives most to one long stream. Three streams that take turns every few kilobytes, as tasks would have them, get
half to three quarters of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.compiler.codegen.layout import Layout, element_bytes
from headrace.compiler.codegen.nest import LevelKind
from headrace.compiler.ir import Kind, Op
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.facts import Facts
from headrace.compiler.schedule.stages import Stage
from headrace.compiler.schedule.tiles import Loops

LINE = 64  # bytes; records are whole lines, so that no vector lies across two


@dataclass(frozen=True, slots=True)
class Share:
    """A weight's share of records.

    Attributes:
        members: The weights of a record, in order.
        offset: Bytes of a record before this weight's.
    """

    members: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Product:
    """The weights of one product: in each turn of its loops it reads one record, whole lines.

    Attributes:
        members: The weights, the largest first.
        tasks: Digits of their layouts that tasks divide.
        heads: Digits that loops walk over, those included.
        sizes: Bytes of each in a record.
        turns: Records of a task.
    """

    members: tuple[int, ...]
    tasks: int
    heads: int
    sizes: tuple[int, ...]
    turns: int


def in_records(
    facts: Facts, stages: Sequence[Stage], loops: Mapping[Nest, Loops], layouts: Mapping[int, Layout]
) -> tuple[dict[int, Layout], dict[int, Share]]:
    """Lay weights out in the order in which tasks read them: product by product, each in records.

    Args:
        facts: The graph.
        stages: Its stages.
        loops: Of each nest.
        layouts: Of each input's node, each weight by itself.

    Returns:
        The layouts, and the shares of those weights that lie in records.
    """
    found, shares = dict(layouts), dict[int, Share]()
    for group in (group for stage in stages for group in stage.groups):
        products = [p for nest in group.nests for p in _products(facts, nest, loops, layouts)]
        digits = {layouts[p.members[0]].pieces[: p.tasks] for p in products}
        for side_by_side in [products] if len(digits) == 1 and products[0].tasks else [[p] for p in products]:
            members = tuple(at for p in side_by_side for at in p.members)
            task = sum(sum(p.sizes) * p.turns for p in side_by_side)
            before = 0
            for p in side_by_side if len(members) > 1 else ():
                for n, at in enumerate(p.members):
                    steps = {p.tasks: task, p.heads: sum(p.sizes)}
                    unit = _unit(facts, layouts[at], at)
                    records = tuple((count, steps[count] // unit) for count in sorted(steps) if count)
                    found[at] = replace(layouts[at], records=records)
                    shares[at] = Share(members, before + sum(p.sizes[:n]))
                before += sum(p.sizes) * p.turns
    return found, shares


def _products(facts: Facts, nest: Nest, loops: Mapping[Nest, Loops], layouts: Mapping[int, Layout]) -> list[_Product]:
    """The products of a nest whose weights nobody else reads."""
    others = frozenset().union(*(n.nodes for n in loops if n is not nest))
    weights = [at for at in sorted(nest.nodes) if _weight(facts, at) and at not in others]
    found = []
    for main in (at for at in weights if at in {facts.behind(x.right) for x in nest.contractions}):
        pieces = layouts[main].pieces
        tasks, heads = (_digits(layouts[main], loops[nest], kinds) for kinds in (_TASKS, _WALKED))
        members = [at for at in weights if heads and layouts[at].pieces[:heads] == pieces[:heads]]
        members.sort(key=lambda at: -_bytes(facts, layouts[at], at, heads))
        sizes = tuple(_bytes(facts, layouts[at], at, heads) for at in members)
        if heads and sum(sizes) % LINE == 0:
            turns = math.prod(piece.extent for piece in pieces[tasks:heads])
            found.append(_Product(tuple(members), tasks, heads, sizes, turns))
    return found


_TASKS = (LevelKind.TASK,)
_WALKED = (LevelKind.TASK, LevelKind.LOOP)


def _weight(facts: Facts, at: int) -> bool:
    node = facts.node(at)
    return node.op is Op.INPUT and facts.graph.inputs[str(node.attrs[0])].kind is Kind.WEIGHT


def _digits(layout: Layout, loops: Loops, kinds: tuple[LevelKind, ...]) -> int:
    """How many of a weight's first digits end with the last that such loops walk over."""
    walked = {(x.axis, x.stride) for x in loops.levels if x.kind in kinds}
    return max((n for n, piece in enumerate(layout.pieces, 1) if (piece.axis, piece.divisor) in walked), default=0)


def _unit(facts: Facts, layout: Layout, at: int) -> int:
    return 1 if layout.nibble else element_bytes(facts.graph.types[at].dtype)


def _bytes(facts: Facts, layout: Layout, at: int, heads: int) -> int:
    """Bytes of a weight in one record."""
    return math.prod(piece.extent for piece in layout.pieces[heads:]) * _unit(facts, layout, at)
