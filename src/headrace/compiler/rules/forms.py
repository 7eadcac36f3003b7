"""Costs that choose among equal programs the one whose form the next step wants: a recipe, or a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.compiler.egraph import ClassId, ENode
from headrace.compiler.ir import ELEMENTWISE, FLOATS, Kind, Op
from headrace.compiler.rules.cost import CostModel
from headrace.compiler.rules.facts import INDEX, RUNTIME

# What it costs to select from a weight that is computed rather than stored, or to add up codes as floats: such work
# may stay in the program if it is cheaper there, and then must have the form that there are instructions for.
FOR_WEIGHTS = 1e3
FORBIDDEN = 1e18  # not infinite: classes that only a forbidden node computes are looked at too, though not taken


@dataclass(frozen=True, slots=True)
class ForRecipe:
    """Before a recipe is applied: weights stay as they are stored, and long folds are cut into blocks."""

    model: CostModel

    def __call__(self, eclass: ClassId, node: ENode) -> float:
        """What a node costs."""
        graph = self.model.graph
        if node.head.op in ELEMENTWISE and INDEX < graph.facts(eclass).level < RUNTIME:
            return FORBIDDEN
        if node.head.op == Op.FOLD and graph.axes[str(node.head.attrs[1])].extent in graph.blocks:
            return FORBIDDEN
        return ForSchedule(self.model)(eclass, node)


@dataclass(frozen=True, slots=True)
class ForSchedule:
    """Before a program is scheduled: states and weights are read where they lie, and changed after that."""

    model: CostModel

    def __call__(self, eclass: ClassId, node: ENode) -> float:
        """What a node costs."""
        graph = self.model.graph
        if node.head.op in ELEMENTWISE and any(self._state(child) for child in node.children):
            return FORBIDDEN
        cost, facts = self.model(eclass, node), graph.facts(eclass)
        if INDEX < facts.level < RUNTIME:
            computed = node.head.op == Op.GATHER and not self._input(node.children[0])
            in_floats = node.head.op == Op.FOLD and facts.dtype in FLOATS
            cost += FOR_WEIGHTS if computed or in_floats else 0.0
        return cost

    def _state(self, eclass: ClassId) -> bool:
        graph = self.model.graph
        names = [str(n.head.attrs[0]) for n in graph.nodes(eclass) if n.head.op == Op.INPUT]
        return any(graph.source.inputs[name].kind is Kind.STATE for name in names)

    def _input(self, eclass: ClassId) -> bool:
        return any(n.head.op == Op.INPUT for n in self.model.graph.nodes(eclass))
