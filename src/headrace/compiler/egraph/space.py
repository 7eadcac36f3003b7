"""``Space``: all programs that an e-graph holds. ``Choice``: one of them.

A program is one node for each class that is reached from the roots, without cycles. All of them are made by one
depth-first walk (``grow``), and differ only in which nodes of a class it tries, and in which order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.compiler.egraph.graph import EGraph
from headrace.compiler.egraph.node import ClassId, EGraphError, ENode

Cost = Callable[[ClassId, ENode], float]
"""What a node costs without its children, not negative. Infinite: it cannot be chosen."""

Genes = tuple[tuple[ClassId, int], ...]
Order = Callable[[ClassId], Sequence[ENode]]


class NoProgram(EGraphError):
    """A root cannot be computed from the nodes that may be chosen.

    Attributes:
        eclass: The root.
    """

    def __init__(self, eclass: ClassId, nodes: Sequence[ENode]) -> None:
        super().__init__(
            f"class {eclass} cannot be computed: of its nodes {[repr(node) for node in nodes[:8]]} each is forbidden, "
            "or needs a class of which this is true; add a rule that lowers them"
        )
        self.eclass = eclass


class Space:
    """All programs that an e-graph holds for some roots: a snapshot, quick to choose from.

    Args:
        graph: Rebuilt.
        roots: What the programs compute.
        allowed: Which nodes may be chosen; all if None.

    Attributes:
        roots: By their names in the graph, in the order given.
        options: Of each class that some program needs, the nodes that are allowed and can be computed, sorted.

    Raises:
        NoProgram: There is none.
    """

    def __init__(
        self, graph: EGraph, roots: Sequence[ClassId], allowed: Callable[[ClassId, ENode], bool] | None = None
    ) -> None:
        self.roots = tuple(map(graph.find, roots))
        nodes: dict[ClassId, Sequence[ENode]] = {}
        todo = list(self.roots)
        while todo:
            eclass = todo.pop()
            if eclass not in nodes:
                all_of_it = graph.nodes(eclass)
                nodes[eclass] = [each for each in all_of_it if allowed is None or allowed(eclass, each)]
                todo.extend(child for node in nodes[eclass] for child in node.children)
        # Of each class the node that needs the fewest levels of others below it: these never lead back.
        self._first: dict[ClassId, ENode] = {}
        level: dict[ClassId, float] = {}
        for eclass, node, at in settle(
            nodes, lambda _, node: 1 + max(map(level.__getitem__, node.children), default=0)
        ):
            self._first[eclass], level[eclass] = node, at
        for root in self.roots:
            if root not in level:
                raise NoProgram(root, graph.nodes(root))
        self.options: dict[ClassId, tuple[ENode, ...]] = {
            eclass: tuple(node for node in nodes[eclass] if all(child in level for child in node.children))
            for eclass in sorted(level)
        }

    def simplest(self) -> Choice:
        """The program that takes of each class the node with the fewest levels of nodes below it."""
        return self.choice(())

    def choice(self, genes: Genes) -> Choice:
        """The program with these genes, elsewhere as in ``simplest``: so a search is replayed.

        Raises:
            EGraphError: The genes are of another space, or lead in a circle.
        """
        wanted = dict(self._first)
        for eclass, index in genes:
            options = self.options.get(eclass, ())
            if not 0 <= index < len(options):
                raise EGraphError(f"gene ({eclass}, {index}) does not fit: the class has {len(options)} options here")
            wanted[eclass] = options[index]
        nodes = grow(self, lambda eclass: (wanted[eclass],))
        if nodes is None:
            raise EGraphError("these genes lead in a circle: they are of another space")
        return Choice(self, nodes)


class Choice(Mapping[ClassId, ENode]):
    """A program: a node for each class that it computes, children before parents, never a cycle. Immutable."""

    __slots__ = ("_nodes", "space")

    def __init__(self, space: Space, nodes: dict[ClassId, ENode]) -> None:
        self.space = space
        self._nodes = nodes

    def __getitem__(self, eclass: ClassId) -> ENode:
        return self._nodes[eclass]

    def __iter__(self) -> Iterator[ClassId]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def cost(self, cost: Cost) -> float:
        """What the program costs, each class counted once."""
        return math.fsum(cost(eclass, node) for eclass, node in self._nodes.items())

    def genes(self) -> Genes:
        """What was chosen where there was a choice: class and index in ``Space.options``, sorted. Equal programs of
        a space have equal genes, in every run."""
        options = self.space.options
        return tuple(
            (eclass, options[eclass].index(node))
            for eclass, node in sorted(self._nodes.items())
            if len(options[eclass]) > 1
        )


def walk(choice: Choice, roots: Sequence[ClassId] | None = None) -> Iterator[tuple[ClassId, ENode]]:
    """The classes and nodes of a program, children before parents; only what ``roots`` need if these are given."""
    yield from (choice if roots is None else _needed(choice, roots)).items()


def grow(space: Space, order: Order) -> dict[ClassId, ENode] | None:
    """Walk down from the roots and take of each class the first node in ``order`` that does not lead back to it.

    A node that leads to a class on the path is given up for the next one; where all nodes of a class do, so is the
    node that led there, and the class is not tried again while those that it ran into are on the path. In a graph full
    of cycles that may still take long, so after enough of it the answer is None.
    """
    chosen: dict[ClassId, ENode] = {}
    blocked: dict[ClassId, set[ClassId]] = {}  # classes that need one of these, which were on the path
    patience = limit = 64 + 4 * len(space.options)
    for root in space.roots:
        path = [_Step(root, order)] if root not in chosen else []
        on_path = {root}
        while path:
            step = path[-1]
            for child in step.children:
                if child not in chosen:
                    break
            else:
                chosen[step.eclass] = step.node
                on_path.discard(step.eclass)
                path.pop()
                continue
            if child in on_path:
                step.met.add(child)
            elif child in blocked and blocked[child] <= on_path:
                step.met |= blocked[child]
            else:
                on_path.add(child)
                path.append(_Step(child, order))
                continue
            patience -= 1
            while path and not path[-1].turn():
                failed = path.pop()
                on_path.discard(failed.eclass)
                blocked[failed.eclass] = failed.met - {failed.eclass}
                if path:
                    path[-1].met |= blocked[failed.eclass]
            if not path or not patience:
                return None
    return chosen if patience == limit else _needed(chosen, space.roots)


class _Step:
    """A class on the path of a walk, the node that is being tried, and what is left to try.

    Attributes:
        met: Classes on the path that the nodes given up led to.
    """

    __slots__ = ("children", "eclass", "met", "node", "others")

    def __init__(self, eclass: ClassId, order: Order) -> None:
        self.eclass = eclass
        self.others = iter(order(eclass))
        self.node = next(self.others)
        self.children = iter(self.node.children)
        self.met: set[ClassId] = set()

    def turn(self) -> bool:
        """Try the next node, if there is one."""
        node = next(self.others, None)
        if node is None:
            return False
        self.node, self.children = node, iter(node.children)
        return True


def _needed(nodes: Mapping[ClassId, ENode], roots: Sequence[ClassId]) -> dict[ClassId, ENode]:
    """What the roots need of a choice, in the same order."""
    needed, todo = set(), list(roots)
    while todo:
        eclass = todo.pop()
        if eclass not in needed:
            needed.add(eclass)
            todo.extend(nodes[eclass].children)
    return {eclass: node for eclass, node in nodes.items() if eclass in needed}


def settle(
    options: Mapping[ClassId, Sequence[ENode]], price: Callable[[ClassId, ENode], float]
) -> Iterator[tuple[ClassId, ENode, float]]:
    """Classes with their nodes of the lowest price, in the order of these prices.

    A node is priced once, when all its children have been yielded; the caller notes what pricing others needs before
    it asks for more. Prices must not be below those of the children.
    """
    nodes = [(eclass, node) for eclass in sorted(options) for node in options[eclass]]
    users: dict[ClassId, list[int]] = {}
    waits: list[int] = []
    for number, (_, node) in enumerate(nodes):
        children = set(node.children)
        waits.append(len(children))
        for child in children:
            users.setdefault(child, []).append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    heap: list[tuple[float, int]] = []
    settled: set[ClassId] = set()
    while True:
        for number in ready:
            if nodes[number][0] not in settled and (total := price(*nodes[number])) < math.inf:
                heapq.heappush(heap, (total, number))
        while heap and nodes[heap[0][1]][0] in settled:
            heapq.heappop(heap)
        if not heap:
            return
        total, number = heapq.heappop(heap)
        eclass, node = nodes[number]
        settled.add(eclass)
        yield eclass, node, total
        ready = []
        for user in users.get(eclass, ()):
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
