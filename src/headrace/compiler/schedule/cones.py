"""Loop nests: which kept values are computed together, and what each nest reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.compiler.ir import Kind, Op, selected_axes
from headrace.compiler.schedule.facts import COSTLY, Contraction, Facts, folded


@dataclass(frozen=True, eq=False)
class Nest:
    """Values that one loop nest computes.

    Attributes:
        roots: The kept values, in order.
        nodes: Everything that is computed for them here.
        reads: Kept values of other nests that are read, each with the axes along which it is read elsewhere than at
            the reader's own place.
        contractions: Those that are computed here.
        writes: Changes of states that the values go to.
        state_reads: Versions of states that are read.
    """

    roots: tuple[int, ...]
    nodes: frozenset[int]
    reads: Mapping[int, frozenset[str]]
    contractions: tuple[Contraction, ...]
    writes: tuple[int, ...]
    state_reads: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """Of its first value."""
        return f"n{self.roots[0]}"


def form(facts: Facts, kept: Mapping[int, str]) -> list[Nest]:
    """The nests, each after those that it reads from.

    Kept values share a nest if they share costly work, or if one reads the other at its own place and contracts none.
    """
    parts = {at: frozenset(facts.cone(at, frozenset(kept) - {at})) for at in kept}
    leader = {at: at for at in kept}

    def find(at: int) -> int:
        while leader[at] != at:
            at = leader[at]
        return at

    def team(at: int) -> list[int]:
        return [x for x in kept if find(x) == find(at)]

    for b in kept:
        for a in reversed([x for x in kept if x < b]):  # what is nearest first
            if find(a) != find(b) and _belong(facts, kept, parts, (a, team(a)), (b, team(b))):
                leader[max(find(a), find(b))] = min(find(a), find(b))
    teams: dict[int, list[int]] = {}
    for at in kept:
        teams.setdefault(find(at), []).append(at)
    nests = [_nest(facts, kept, parts, team) for team in teams.values()]
    return _ordered(facts, nests)


def repeated(facts: Facts, nests: list[Nest]) -> set[int]:
    """Values that several nests would compute, contractions and all: where what they have in common ends."""
    found: set[int] = set()
    for n, a in enumerate(nests):
        for b in nests[:n]:
            common = a.nodes & b.nodes
            products = common & set(facts.contractions)
            if products:
                after = _after(facts, common, products)
                found |= {at for at in after if not set(facts.consumers[at]) & (a.nodes | b.nodes) <= common}
    return found


def _after(facts: Facts, nodes: frozenset[int], products: frozenset[int]) -> set[int]:
    found = set(products)
    for at in sorted(nodes):
        if any(a in found for a in facts.node(at).args):
            found.add(at)
    return found


def _belong(
    facts: Facts,
    kept: Mapping[int, str],
    parts: Mapping[int, frozenset[int]],
    first: tuple[int, list[int]],
    second: tuple[int, list[int]],
) -> bool:
    """Whether two kept values, each with its team, shall share a nest."""
    (a, team_a), (b, team_b) = first, second
    nodes_a, nodes_b = (frozenset().union(*(parts[x] for x in team)) for team in (team_a, team_b))
    if not (_share_work(facts, parts[a], parts[b]) or _reads(facts, kept, parts[b], b).get(a) == frozenset()):
        return False
    contracts = [bool(nodes & facts.contractions.keys()) for nodes in (nodes_a, nodes_b)]
    if contracts[0] != contracts[1]:
        # After a contraction only what folds no other axes, for its tasks share the axes that are left; before it
        # nothing, for that would be computed again in each of them.
        common = frozenset.intersection(*(facts.axes[x] for x in team_a))
        narrow = any(not common <= facts.axes[x] | folded(facts, nodes_b) for x in team_b)
        if not contracts[0] or narrow or not folded(facts, nodes_b) <= folded(facts, nodes_a):
            return False
    elif contracts[0] and not _share_work(facts, nodes_a, nodes_b):
        return False
    both = [*team_a, *team_b]
    whole = {axis for axis in folded(facts, nodes_a | nodes_b) if not isinstance(facts.graph.axes[axis].extent, int)}
    if any(whole & facts.axes[x] for x in both):
        return False  # what is folded over all rows is there after the last, when the first is no longer at hand
    elsewhere = any(axes and at in both for x in both for at, axes in _reads(facts, kept, parts[x], x).items())
    return not elsewhere and not _encloses(facts, kept, parts, sorted(both))


def _share_work(facts: Facts, a: frozenset[int], b: frozenset[int]) -> bool:
    return any(facts.node(x).op in COSTLY and not facts.constant[x] for x in a & b)


def _reads(
    facts: Facts, kept: Mapping[int, str], nodes: frozenset[int], root: int | None = None
) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for at in sorted(nodes):
        node = facts.node(at)
        for place, a in enumerate(node.args):
            if a in kept and a != root and a not in nodes - {at}:
                source = node.op is Op.GATHER and place == 0
                elsewhere = frozenset(selected_axes(node)) if source else frozenset()
                found[a] = found.get(a, frozenset()) | elsewhere
    return found


def _encloses(facts: Facts, kept: Mapping[int, str], parts: Mapping[int, frozenset[int]], team: list[int]) -> bool:
    """Whether something between two of the team would be computed outside: then they cannot share a nest."""
    inside = set(team)
    after: set[int] = set()
    for at in sorted(kept):
        sources = set(_reads(facts, kept, parts[at], at))
        if at in inside:
            if sources & after:
                return True
        elif sources & (inside | after):
            after.add(at)
    return False


def _nest(facts: Facts, kept: Mapping[int, str], parts: Mapping[int, frozenset[int]], team: list[int]) -> Nest:
    nodes = frozenset().union(*(parts[at] for at in team))
    writes = tuple(n for n, w in enumerate(facts.graph.writes) if w.value in team)
    indices = frozenset(x for n in writes for i in facts.graph.writes[n].indices for x in facts.cone(i, set(kept)))
    reads = {at: axes for at, axes in _reads(facts, kept, nodes | indices).items() if at not in team}
    versions = []
    for at in sorted(nodes):
        if facts.node(at).op is Op.INPUT:
            declared = facts.graph.inputs[str(facts.node(at).attrs[0])]
            if declared.kind is Kind.STATE:
                versions.append((declared.state, declared.version))
    contractions = tuple(facts.contractions[at] for at in sorted(nodes) if at in facts.contractions)
    return Nest(tuple(sorted(team)), nodes, reads, contractions, writes, tuple(versions))


def comes_before(facts: Facts, a: Nest, b: Nest) -> bool:
    """Whether what ``a`` does to a state, or sees of it, must be over before ``b``."""
    writes = facts.graph.writes
    of_state = {name: [n for n, w in enumerate(writes) if w.state == name] for name in facts.graph.states}
    before = {n for state, version in b.state_reads for n in of_state[state][:version]}
    before |= {m for n in b.writes for m in of_state[writes[n].state] if m < n}
    after = {n for state, version in a.state_reads for n in of_state[state][version:]}
    return a is not b and bool(before & set(a.writes) or after & set(b.writes))


def _ordered(facts: Facts, nests: list[Nest]) -> list[Nest]:
    made = {root: nest for nest in nests for root in nest.roots}
    order: list[Nest] = []
    stack = sorted(nests, key=lambda nest: -nest.roots[-1])
    while stack:
        waiting = [made[at] for at in stack[-1].reads if made[at] not in order]
        waiting += [n for n in nests if n not in order and comes_before(facts, n, stack[-1])]
        if waiting:
            stack += waiting
        elif (nest := stack.pop()) not in order:
            order.append(nest)
    return order
