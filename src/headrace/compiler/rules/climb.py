"""Better programs one choice at a time: the greedy extractor prices a class as if nothing else needed what is below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.compiler.egraph import Choice, ClassId, Cost, EGraph, ENode, Space, cheapest
from headrace.compiler.egraph.space import grow

SWEEPS = 6
GAIN = 1e-9
"""Changes that save a smaller share are noise of the sum."""


def climb(graph: EGraph, choice: Choice, cost: Cost, sweeps: int = SWEEPS) -> Choice:
    """The program after every change of one class' node that makes it cheaper as a whole; a local minimum.

    Args:
        graph: What the choice is from.
        choice: Where to start.
        cost: Of a node without its children.
        sweeps: How often to try all of its classes, at most.
    """
    total = choice.cost(cost)
    for _ in range(sweeps):
        before = total
        spare = _best_besides(graph, choice, cost)
        for eclass in list(choice):
            for change in _changes(choice, eclass):
                other = _changed(choice, change, spare)
                if other is not None and (price := other.cost(cost)) < total * (1 - GAIN):
                    choice, total = other, price
                    break
        if total >= before * (1 - GAIN):
            break
    return choice


def _best_besides(graph: EGraph, choice: Choice, cost: Cost) -> Mapping[ClassId, ENode]:
    """A good node for every class that can be computed, if what the program does is there already."""

    def added(eclass: ClassId, node: ENode) -> float:
        return 0.0 if choice.get(eclass) == node else cost(eclass, node)

    return cheapest(Space(graph, tuple(choice.space.options)), added)


def _changes(choice: Choice, eclass: ClassId) -> Iterator[dict[ClassId, ENode]]:
    """Other nodes for a class, and with them other nodes for what they need that is new, if these need something that
    is not: so that two ways to one end are left together."""
    options = choice.space.options
    for option in options[eclass] if eclass in choice else ():
        if option != choice[eclass]:
            yield {eclass: option}
            for child in option.children:
                if child not in choice:
                    for node in options[child]:
                        if any(below in choice for below in node.children):
                            yield {eclass: option, child: node}


def _changed(choice: Choice, change: Mapping[ClassId, ENode], spare: Mapping[ClassId, ENode]) -> Choice | None:
    options = choice.space.options

    def order(at: ClassId) -> Sequence[ENode]:
        node = change.get(at) or choice.get(at) or spare.get(at)
        return options[at] if node is None else (node,)

    nodes = grow(choice.space, order)
    return None if nodes is None else Choice(choice.space, nodes)
