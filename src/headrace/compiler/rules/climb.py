"""Better programs one choice at a time: the greedy extractor prices a class as if nothing else needed what is below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    spare = _best_anywhere(graph, choice.space, cost)
    total = choice.cost(cost)
    for _ in range(sweeps):
        before = total
        for eclass in list(choice):
            node = choice.get(eclass)
            for option in choice.space.options[eclass] if node is not None else ():
                if option != choice[eclass]:
                    other = _changed(choice, eclass, option, spare)
                    if other is not None and (price := other.cost(cost)) < total * (1 - GAIN):
                        choice, total = other, price
                        if eclass not in choice:
                            break
        if total >= before * (1 - GAIN):
            break
    return choice


def _best_anywhere(graph: EGraph, space: Space, cost: Cost) -> Mapping[ClassId, ENode]:
    """A good node for every class that can be computed, whether the program needs it or not."""
    return cheapest(Space(graph, tuple(space.options)), cost)


def _changed(choice: Choice, eclass: ClassId, option: ENode, spare: Mapping[ClassId, ENode]) -> Choice | None:
    options = choice.space.options

    def order(at: ClassId) -> Sequence[ENode]:
        if at == eclass:
            return (option,)
        node = choice.get(at) or spare.get(at)
        return options[at] if node is None else (node,)

    nodes = grow(choice.space, order)
    return None if nodes is None else Choice(choice.space, nodes)
