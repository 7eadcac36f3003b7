"""``EGraph``: many equal programs in one graph, after egg (Willsey et al., POPL 2021).

Every ``add`` of something new makes one e-node and one class of it alone, and both have the same number: that of a
node stays its name for ever (``_forms[number]`` is its current form), that of a class leads by union-find to the class
that it became part of. ``union`` only notes what is equal now; ``rebuild`` then restores, for many unions at once::

    congruence   nodes of one head with children in the same classes are in one class
    hash-consing each such node is stored once, its children by their current names
    facts        every analysis' fact about a class follows from all its nodes

Between the two the graph is sound but may not see all that is equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from headrace.compiler.egraph.analysis import Analysis, Conflict, Contradiction
from headrace.compiler.egraph.node import ClassId, EClass, EGraphError, ENode, Head, Union

D = TypeVar("D")

GIVEN = "given"
CONGRUENCE = "congruence"
MAX_CHANGES = 1000
"""Times that a class' facts may change in one rebuild; more means an analysis that never settles."""


class EGraph:
    """An e-graph. Same calls, same graph, in every run: whatever is iterated is sorted.

    Args:
        analyses: Facts to keep, each by an object of its own; a later one may use the earlier ones' facts.
        max_nodes: More than this and ``add`` raises; ``saturate`` has a softer limit.

    Attributes:
        because: Why nodes are being added and classes united at present: a rule's name while it is applied.
        unions: Every union of two different classes so far, in order.
        eclasses: By present name.
        clock: Rebuilds so far.
    """

    def __init__(self, analyses: Sequence[Analysis[Any]] = (), max_nodes: int = 1_000_000) -> None:
        self.analyses = tuple(analyses)
        self.max_nodes = max_nodes
        self.because = GIVEN
        self.unions: list[Union] = []
        self.eclasses: dict[ClassId, EClass] = {}
        self.clock = 0
        self._recent: dict[int, list[set[ClassId]]] = {}  # answers of recent(), until the next rebuild
        self._slots = {analysis: slot for slot, analysis in enumerate(self.analyses)}
        self._modifying = [each for each in self.analyses if type(each).modify is not Analysis.modify]
        self._heads: dict[Head, Head] = {}  # equal heads become one object, so that comparing them costs nothing
        self._leaders: list[ClassId] = []
        self._forms: list[ENode] = []
        self._reasons: list[str] = []
        self._numbers: dict[ENode, int] = {}  # the hash-cons: form to the lowest number that has it
        self._by_op: dict[str, list[int]] = {}
        self._having: dict[str, list[ClassId]] = {}  # answers of having(), until something changes
        self._moved: list[int] = []  # nodes with a child whose class was merged into another
        self._stale: list[int] = []  # nodes with a child whose facts changed
        self._modify: list[ClassId] = []  # classes whose facts are new
        self._untidy: set[ClassId] = set()  # classes with old forms, duplicates or no order in their lists

    def __len__(self) -> int:
        """Number of e-nodes."""
        return len(self._numbers)

    # What is in it

    def find(self, eclass: ClassId) -> ClassId:
        """The present name of a class."""
        leaders = self._leaders
        while (leader := leaders[eclass]) != eclass:
            leaders[eclass] = leaders[leader]
            eclass = leader
        return eclass

    def nodes(self, eclass: ClassId) -> Sequence[ENode]:
        """The nodes of a class, sorted. Not to be changed."""
        return self.eclasses[self.find(eclass)].nodes

    def parents(self, eclass: ClassId) -> list[tuple[ClassId, ENode]]:
        """The nodes that have a class as a child, each with its own class, sorted."""
        numbers = self.eclasses[self.find(eclass)].parents
        return sorted({(self.find(number), self.canonical(self._forms[number])) for number in numbers})

    def classes(self) -> list[ClassId]:
        """All classes, sorted."""
        return sorted(self.eclasses)

    def having(self, op: str) -> Sequence[ClassId]:
        """The classes with a node of an operation, sorted."""
        known = self._having.get(op)
        if known is None:
            known = self._having[op] = sorted(set(map(self.find, self._by_op.get(op, ()))))
        return known

    def recent(self, since: int, levels: int) -> set[ClassId]:
        """The classes whose nodes changed since the clock showed ``since``, or those of a class some levels below."""
        if since not in self._recent:
            self._recent[since] = [{name for name, each in self.eclasses.items() if each.changed >= since}]
        reached = self._recent[since]
        while len(reached) <= levels:
            edge = reached[-1] - reached[-2] if len(reached) > 1 else reached[-1]
            above = (number for eclass in edge for number in self.eclasses[eclass].parents)
            reached.append(reached[-1].union(map(self.find, above)))
        return reached[levels]

    def interned(self, head: Head) -> Head | None:
        """The object by which the graph's nodes hold a head; None if no node has it."""
        return self._heads.get(head)

    def fact(self, analysis: Analysis[D], eclass: ClassId) -> D:
        """What an analysis knows about a class.

        Raises:
            EGraphError: The graph does not keep this analysis.
        """
        slot = self._slots.get(analysis)
        if slot is None:
            raise EGraphError(f"this e-graph does not keep {analysis.name!r}: name it when the graph is made")
        fact: D = self.eclasses[self.find(eclass)].facts[slot]
        return fact

    def reasons(self, eclass: ClassId) -> Counter[str]:
        """What made a class: for each reason, the nodes that it first added and the unions that it made, counted."""
        leader = self.find(eclass)
        made = Counter(self._reasons[number] for number in range(len(self._leaders)) if self.find(number) == leader)
        return made + Counter(union.because for union in self.unions if self.find(union.left) == leader)

    def origin(self, node: ENode) -> str:
        """Why a node was first added: ``given`` or the name of a rule.

        Raises:
            EGraphError: There is no such node.
        """
        number = self._numbers.get(self.canonical(node))
        if number is None:
            raise EGraphError(f"{node} is not in the e-graph: after unions, rebuild before asking")
        return self._reasons[number]

    # Changing it

    def add(self, head: Head, children: Iterable[ClassId] = ()) -> ClassId:
        """The class of a node, which is new if no such node was there.

        Raises:
            EGraphError: A child is no class of this graph, or the graph is full.
            Conflict: An analysis cannot make a fact that fits.
        """
        count = len(self._leaders)
        given = tuple(children)
        if given and not 0 <= min(given) <= max(given) < count:
            raise EGraphError(f"{head} has the children {given}, but there are only classes 0 to {count - 1}")
        node = ENode(self._heads.setdefault(head, head), tuple(map(self.find, given)))
        known = self._numbers.get(node)
        if known is not None:
            return self.find(known)
        if len(self._numbers) >= self.max_nodes:
            raise EGraphError(f"the e-graph is full: {self.max_nodes} nodes; bound the rules or raise max_nodes")
        facts = [analysis.make(self, node) for analysis in self.analyses]
        self._numbers[node] = count
        self._leaders.append(count)
        self._forms.append(node)
        self._reasons.append(self.because)
        self.eclasses[count] = EClass(node, facts, self.clock)
        for child in set(node.children):
            self.eclasses[child].parents.append(count)
        self._by_op.setdefault(head.op, []).append(count)
        self._having.pop(head.op, None)
        if self._modifying:
            self._modify.append(count)
        return count

    def union(self, left: ClassId, right: ClassId, why: str | None = None) -> bool:
        """Call two classes equal; follow with ``rebuild``.

        Returns:
            Whether they were not equal before.

        Raises:
            Conflict: An analysis knows better; nothing was changed by this call.
        """
        keep, lose = self.find(left), self.find(right)
        if keep == lose:
            return False
        # The one with more parents stays, because the other's have to be visited.
        if (-len(self.eclasses[keep].parents), keep) > (-len(self.eclasses[lose].parents), lose):
            keep, lose = lose, keep
        because = self.because if why is None else why
        kept, lost = self.eclasses[keep], self.eclasses[lose]
        facts = [self._merged(slot, keep, kept, lost.facts[slot], because) for slot in range(len(self.analyses))]
        self.unions.append(Union(left, right, because))
        self._moved.extend(lost.parents)
        if facts != kept.facts:
            self._stale.extend(kept.parents)
        if facts != lost.facts:
            self._stale.extend(lost.parents)
        if self._modifying:
            self._modify.append(keep)
        self._leaders[lose] = keep
        kept.facts = facts
        kept.nodes.extend(lost.nodes)
        kept.parents.extend(lost.parents)
        del self.eclasses[lose]
        self._untidy.add(keep)
        self._having.clear()
        return True

    def rebuild(self) -> None:
        """Restore the invariants after unions; worth calling once for many of them.

        Raises:
            Conflict: What was called equal implies that two things are, which an analysis knows are not.
            EGraphError: The facts of a class do not settle.
        """
        changes: Counter[ClassId] = Counter()
        while self._moved or self._stale or self._modify:
            if self._moved:
                self._restore_congruence(self._moved.pop())
            elif self._stale:
                numbers, self._stale = sorted(set(self._stale)), []
                for number in numbers:
                    self._restore_facts(number, changes)
            else:
                eclasses, self._modify = sorted(set(map(self.find, self._modify))), []
                for eclass in eclasses:
                    for analysis in self._modifying:
                        analysis.modify(self, self.find(eclass))
        self._tidy()

    def canonical(self, node: ENode) -> ENode:
        """The node with its children by their present names."""
        children = tuple(map(self.find, node.children))
        return node if children == node.children else ENode(node.head, children)

    def check(self) -> None:
        """Assert all invariants (those of congruence, order and facts when nothing waits for a rebuild)."""
        from headrace.compiler.egraph.invariants import check

        check(self)

    def dump(self) -> str:
        """The whole graph as text, a class a line: equal graphs, equal texts."""
        return "\n".join(f"{eclass}: {' | '.join(map(repr, self.nodes(eclass)))}" for eclass in self.classes())

    def _restore_congruence(self, number: int) -> None:
        old = self._forms[number]
        new = self.canonical(old)
        if new is old:
            return
        if self._numbers.get(old) == number:
            del self._numbers[old]
        self._forms[number] = new
        self._untidy.add(self.find(number))
        twin = self._numbers.setdefault(new, number)
        if twin == number:
            return
        self._numbers[new] = min(twin, number)
        self._untidy.update(new.children)
        self.union(number, twin, CONGRUENCE)

    def _restore_facts(self, number: int, changes: Counter[ClassId]) -> None:
        leader = self.find(number)
        eclass = self.eclasses[leader]
        node = self._forms[number]
        facts = [
            self._merged(slot, leader, eclass, analysis.make(self, node), f"{node} in it")
            for slot, analysis in enumerate(self.analyses)
        ]
        if facts == eclass.facts:
            return
        changes[leader] += 1
        if changes[leader] > MAX_CHANGES:
            raise EGraphError(f"the facts of class {leader} do not settle, now {facts}: merge must reach an end")
        eclass.facts = facts
        self._stale.extend(eclass.parents)
        if self._modifying:
            self._modify.append(leader)

    def _merged(self, slot: int, leader: ClassId, eclass: EClass, right: Any, because: str) -> Any:
        left = eclass.facts[slot]
        if left is right:
            return left
        analysis = self.analyses[slot]
        try:
            return analysis.merge(left, right)
        except Contradiction as error:
            raise Conflict(analysis.name, leader, left, right, because, str(error)) from error

    def _tidy(self) -> None:
        """Forget old forms and dead numbers (those whose form has a lower number), and sort what is left."""
        numbers, forms = self._numbers, self._forms
        for leader in sorted(set(map(self.find, self._untidy))):
            eclass = self.eclasses[leader]
            eclass.changed = self.clock
            eclass.nodes = sorted(set(map(self.canonical, eclass.nodes)))
            eclass.parents = sorted({number for number in eclass.parents if numbers[forms[number]] == number})
        self._untidy.clear()
        self._recent.clear()
        self.clock += 1
