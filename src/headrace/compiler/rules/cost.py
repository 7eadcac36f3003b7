"""What a program costs, by counting: an extractor's guide, no prediction of seconds.

The unit is one floating point operation on one element. What depends on weights alone is computed when the model is
loaded; reading it costs its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.compiler.egraph import ClassId, ENode
from headrace.compiler.ir import FLOATS, INTEGERS, Op
from headrace.compiler.rules.facts import INDEX, RUNTIME, Facts
from headrace.compiler.rules.program import ProgramGraph

SIZES = {"T": 16, "B": 4, "S": 1024, "P": 64, "R": 4, "N": 256}
OTHER = 64
"""Length of an axis whose symbol has no value."""

BYTE = 2.0
COSTLY = {Op.EXP2: 8.0, Op.LOG2: 8.0, Op.SIN: 8.0, Op.SQRT: 4.0, Op.RECIP: 4.0}
SMALL_INTEGERS = 0.125
AT_LOAD = 1e-6
REPACKED = 1e3
"""Rearranging what was computed from weights, where the weights themselves could have been rearranged."""

VIEW = 0.25
REARRANGED = 6.0
PRODUCT = 1.05
"""Selecting from a product rather than from what it is made of: that is more likely to be in memory anyway."""

FAR = 4.0
"""What is read along an axis of any length has to be kept in memory, and so has what is read again after a fold."""


class CostModel:
    """Costs of nodes, as ``cheapest`` wants them.

    Args:
        graph: Rebuilt.
        sizes: Values of symbols; those that are missing have a typical one.
    """

    def __init__(self, graph: ProgramGraph, sizes: Mapping[str, int] | None = None) -> None:
        self.graph = graph
        given = {**SIZES, **(sizes or {})}
        for each in graph.assumptions.blocks:
            given.setdefault(each.count, -(-given.get(each.symbol, OTHER) // each.size))
        self.length: dict[str, int] = {}
        self.symbols: dict[str, str] = {}
        base = {each.count: each.symbol for each in graph.assumptions.blocks}
        for name, axis in graph.axes.items():
            fixed = isinstance(axis.extent, int)
            self.length[name] = axis.extent if isinstance(axis.extent, int) else given.get(axis.extent, OTHER)
            if not fixed:
                self.symbols[name] = base.get(str(axis.extent), str(axis.extent))
        self._known: dict[ENode, float] = {}

    def __call__(self, eclass: ClassId, node: ENode) -> float:
        """Cost of a node without its children."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._price(eclass, node)
        return known

    def _price(self, eclass: ClassId, node: ENode) -> float:
        own = self.graph.facts(eclass)
        args = [self.graph.facts(child) for child in node.children]
        op = Op(node.head.op)
        if op in (Op.INPUT, Op.CONST):
            return 0.0 if op is Op.CONST else AT_LOAD
        axes: frozenset[str] = frozenset().union(own.axes if op is Op.IOTA else (), *(a.axes for a in args))
        if op is Op.GATHER:
            axes = (args[0].axes - set(node.head.attrs[0])).union(*(a.axes for a in args[1:]))
        count = self._count(axes)
        if own.level < RUNTIME:
            rearranged = op is Op.GATHER and own.level > INDEX and not args[0].view
            return AT_LOAD * (1.0 + count * 1e-3) * (REPACKED if rearranged else 1.0)
        reading = sum(BYTE * a.bits / 8 * self._count(a.axes) for a in args if a.level < RUNTIME and a.level > INDEX)
        return count * self._operation(op, node, own, args, axes) + reading + AT_LOAD

    def _count(self, axes: frozenset[str]) -> float:
        result = 1.0
        for axis in axes:
            result *= self.length[axis]
        return result

    def _operation(self, op: Op, node: ENode, own: Facts, args: list[Any], axes: frozenset[str]) -> float:
        if op is Op.GATHER:
            if args[0].view:
                return VIEW
            product = any(each.head.op == Op.MUL for each in self.graph.nodes(node.children[0]))
            return REARRANGED * (PRODUCT if product else 1.0)
        if op is Op.CAST and own.view:
            return AT_LOAD
        price = COSTLY.get(op, 1.0)
        if own.dtype in INTEGERS or (op is Op.CAST and args[0].dtype in INTEGERS):
            price = SMALL_INTEGERS
        if op is Op.FOLD and node.head.attrs[1] in self.symbols:
            price *= FAR
        again = {self.symbols[axis] for axis in axes if axis in self.symbols}
        if op is not Op.FOLD and any(a.folded & again for a in args) and own.dtype in FLOATS:
            price *= FAR
        return price
