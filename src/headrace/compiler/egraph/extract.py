"""Which program to take: the cheapest, any, or a mutant or a cross of others for a genetic search."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headrace.compiler.egraph.node import ClassId, EGraphError, ENode
from headrace.compiler.egraph.space import Choice, Cost, NoProgram, Order, Space, grow, settle


def cheapest(space: Space, cost: Cost) -> Choice:
    """A program of low cost, each class counted once (finding the lowest is NP-hard).

    Greedy: each class takes the node that makes the classes below it cheapest together, as if for itself alone. Every
    node is looked at once, in the order of these costs (Knuth, "A generalization of Dijkstra's algorithm", 1977), so
    a class is settled before whatever needs it, and no choice leads in a circle.

    Raises:
        NoProgram: Everything that computes a root costs infinitely much.
        EGraphError: A cost is negative or not a number.
    """
    shared = _Shared(cost)
    best: dict[ClassId, ENode] = {}
    for eclass, node, total in settle(space.options, shared.price):
        shared.settle(eclass, node, total)
        best[eclass] = node
    for root in space.roots:
        if root not in best:
            raise NoProgram(root, space.options[root])
    nodes = grow(space, lambda eclass: (best[eclass],))
    assert nodes is not None, "settled classes lead in a circle"
    return Choice(space, nodes)


def random_choice(space: Space, rng: Random) -> Choice:
    """Any program, each node of a class about as likely as the others."""
    nodes = grow(space, _shuffled(space, rng))
    return space.simplest() if nodes is None else Choice(space, nodes)


def mutate(choice: Choice, rng: Random, n: int = 1) -> Choice:
    """The same program but for the nodes of up to ``n`` of its classes, and what these need that it had not."""
    options = choice.space.options
    shuffled = _shuffled(choice.space, rng)
    changeable = [eclass for eclass in choice if len(options[eclass]) > 1]
    changed = set(rng.sample(changeable, min(n, len(changeable))))

    def order(eclass: ClassId) -> Sequence[ENode]:
        old = choice.get(eclass)
        if old is None:
            return shuffled(eclass)
        if eclass in changed:
            return (*(node for node in shuffled(eclass) if node != old), old)
        return (old, *options[eclass])

    nodes = grow(choice.space, order)
    return choice if nodes is None else Choice(choice.space, nodes)


def crossover(a: Choice, b: Choice, rng: Random) -> Choice:
    """A program whose nodes come from two of the same space: where both have the class, by the toss of a coin."""
    options = a.space.options
    shuffled = _shuffled(a.space, rng)

    def order(eclass: ClassId) -> Sequence[ENode]:
        if len(options[eclass]) == 1:
            return options[eclass]
        first, second = (a, b) if rng.random() < 0.5 else (b, a)
        node, other = first.get(eclass), second.get(eclass)
        if node is None or other is None:
            node = node or other
            return shuffled(eclass) if node is None else (node, *options[eclass])
        return (node, other, *options[eclass])

    nodes = grow(a.space, order)
    return a if nodes is None else Choice(a.space, nodes)


def _shuffled(space: Space, rng: Random) -> Order:
    options, random = space.options, rng.random

    def order(eclass: ClassId) -> Sequence[ENode]:
        nodes = options[eclass]
        if len(nodes) == 1:
            return nodes
        # A rotation is as fair for the first node as a shuffle, and the others are rarely asked for.
        start = int(random() * len(nodes))
        return nodes[start:] + nodes[:start]

    return order


class _Shared:
    """Prices by which what several children need is paid once.

    The classes below a class are a set of bits, numbered as they are settled. Of most nodes' children one needs nearly
    all that the others need, so that its total and the few bits that are missing in it give the node's.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._own: list[float] = []  # by bit
        self._sets: dict[ClassId, int] = {}  # a class and all below it
        self._totals: dict[ClassId, float] = {}

    def price(self, eclass: ClassId, node: ENode) -> float:
        """What a node and all below it cost."""
        own = self._cost(eclass, node)
        if not own >= 0:
            raise EGraphError(f"{node} costs {own}: a cost is a number of at least 0, or infinite")
        total, _ = self._below(node)
        return total + own

    def settle(self, eclass: ClassId, node: ENode, total: float) -> None:
        """Note that a class is computed by a node."""
        _, below = self._below(node)
        self._sets[eclass] = below | 1 << len(self._own)
        self._own.append(self._cost(eclass, node))
        self._totals[eclass] = total

    def _below(self, node: ENode) -> tuple[float, int]:
        if not node.children:
            return 0.0, 0
        main = max(node.children, key=self._totals.__getitem__)
        total, below = self._totals[main], self._sets[main]
        for child in node.children:
            missing = self._sets[child] & ~below
            below |= missing
            while missing:
                bit = missing & -missing
                total += self._own[bit.bit_length() - 1]
                missing ^= bit
        return total, below
