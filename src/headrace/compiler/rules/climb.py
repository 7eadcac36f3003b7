"""Better programs one choice at a time: the greedy extractor prices a class as if nothing else needed what is below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.compiler.egraph import Choice, ClassId, Cost, EGraph, ENode, Space, cheapest
from headrace.compiler.egraph.space import grow

SWEEPS = 6
GAIN = 1e-9
"""Changes that save a smaller share are noise of the sum."""

Change = Mapping[ClassId, ENode]


def climb(
    graph: EGraph, choice: Choice, cost: Cost, matters: Callable[[ClassId], bool], sweeps: int = SWEEPS
) -> Choice:
    """The program after every change of one class' node that makes it cheaper as a whole; a local minimum.

    Args:
        graph: What the choice is from.
        choice: Where to start.
        cost: Of a node without its children.
        matters: Whether a class is worth trying.
        sweeps: How often to try all of its classes, at most.
    """
    for _ in range(sweeps):
        before = choice.cost(cost)
        spare = _best_besides(graph, choice, cost)
        ledger = _Ledger(choice, cost, spare)
        for eclass in filter(matters, list(choice)):
            for change in _changes(choice, eclass):
                if ledger.saved_by(change) > before * GAIN:
                    other = _changed(choice, change, spare)
                    if other is not None:
                        choice = other
                        ledger = _Ledger(choice, cost, spare)
                        break
        if choice.cost(cost) >= before * (1 - GAIN):
            break
    return choice


def _best_besides(graph: EGraph, choice: Choice, cost: Cost) -> Mapping[ClassId, ENode]:
    """A good node for every class that can be computed, if what the program does is there already."""

    def added(eclass: ClassId, node: ENode) -> float:
        return 0.0 if choice.get(eclass) == node else cost(eclass, node)

    return cheapest(Space(graph, tuple(choice.space.options)), added)


def _changes(choice: Choice, eclass: ClassId) -> Iterator[Change]:
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


def _changed(choice: Choice, change: Change, spare: Mapping[ClassId, ENode]) -> Choice | None:
    options = choice.space.options

    def order(at: ClassId) -> Sequence[ENode]:
        node = change.get(at) or choice.get(at) or spare.get(at)
        return options[at] if node is None else (node,)

    nodes = grow(choice.space, order)
    return None if nodes is None else Choice(choice.space, nodes)


class _Ledger:
    """How often each class is used, so that a change costs only what it touches."""

    def __init__(self, choice: Choice, cost: Cost, spare: Mapping[ClassId, ENode]) -> None:
        self.choice, self.cost, self.spare = choice, cost, spare
        self.uses = Counter(choice.space.roots)
        for node in choice.values():
            self.uses.update(node.children)

    def saved_by(self, change: Change) -> float:
        """What the program would cost less. A change that leads in a circle is not noticed."""
        touched: list[tuple[ClassId, int]] = []
        new: dict[ClassId, ENode] = {}
        saved = 0.0
        for eclass, node in change.items():
            old = self.choice.get(eclass)
            if old is not None:
                saved -= self.cost(eclass, node) + self._need(node.children, change, new, touched)
                saved += self.cost(eclass, old) + self._drop(old.children, new, touched)
        for eclass, count in touched:
            self.uses[eclass] -= count
        return saved

    def _need(
        self, wanted: Sequence[ClassId], change: Change, new: dict[ClassId, ENode], touched: list[tuple[ClassId, int]]
    ) -> float:
        total, todo = 0.0, list(wanted)
        while todo:
            eclass = todo.pop()
            self.uses[eclass] += 1
            touched.append((eclass, 1))
            if self.uses[eclass] == 1:
                new[eclass] = change.get(eclass) or self.spare[eclass]
                total += self.cost(eclass, new[eclass])
                todo += new[eclass].children
        return total

    def _drop(
        self, unwanted: Sequence[ClassId], new: Mapping[ClassId, ENode], touched: list[tuple[ClassId, int]]
    ) -> float:
        total, todo = 0.0, list(unwanted)
        while todo:
            eclass = todo.pop()
            self.uses[eclass] -= 1
            touched.append((eclass, -1))
            if not self.uses[eclass]:
                node = new.get(eclass) or self.choice[eclass]
                total += self.cost(eclass, node)
                todo += node.children
        return total
