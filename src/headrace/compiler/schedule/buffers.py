"""Which values are kept in memory; all others live in registers, fused with whoever reads them.

Everything starts fused. A rule names the values that must or should be kept all the same, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.compiler.ir import Op
from headrace.compiler.schedule.facts import Contraction, Facts, folded


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Why values are kept.

    Attributes:
        name: For reports.
        doc: Why.
        find: The values, given those that are kept already.
        exact: Whether it asks for the very value, even if that is in memory already in another type or place.
    """

    name: str
    doc: str
    find: Callable[[Facts, frozenset[int]], Iterable[int]]
    exact: bool = False


def keep(facts: Facts) -> dict[int, str]:
    """The values kept in memory, with the name of the rule that asked for it."""
    kept: dict[int, str] = {}
    while True:
        before = len(kept)
        for rule in RULES:
            for value in rule.find(facts, frozenset(kept)):
                at = value if rule.exact else facts.behind(value)
                if rule.exact or not (facts.read_from_memory[at] or _index(facts, at)):
                    kept.setdefault(at, rule.name)
        if len(kept) == before:
            return dict(sorted(kept.items()))


def _results(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    graph = facts.graph
    yield from (node for node, _ in graph.outputs.values())
    yield from (write.value for write in graph.writes)


def _gathered(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for node in facts.graph.nodes:
        if node.op is Op.GATHER and facts.node(node.args[0]).op not in (Op.IOTA, Op.INPUT):
            yield node.args[0]


def _factors(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for found in facts.contractions.values():
        for side in (found.left, found.right):
            if not facts.constant[side]:
                yield side


def _invariant(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for root in (*facts.roots, *kept):
        nest = facts.cone(root, kept)
        for product in (facts.contractions[at] for at in nest if at in facts.contractions):
            if not facts.constant[product.right]:
                continue
            columns = facts.axes[product.right] - facts.axes[product.left]
            wide = {at for at in nest if columns & facts.axes[at]}
            for at in nest:
                if at not in wide and facts.costly[at] and not facts.constant[at] and wide & set(facts.consumers[at]):
                    yield at


def _sums(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for root in (*facts.roots, *kept):
        nest = facts.cone(root, kept - {root})
        products = [facts.contractions[at] for at in nest if at in facts.contractions]
        products = [found for found in products if facts.constant[found.right]]
        columns = frozenset().union(*(facts.axes[found.right] - facts.axes[found.left] for found in products))
        if len({found.right for found in products}) > 1 or columns & folded(facts, nest):
            yield from (total for found in products if (total := _total(facts, found, frozenset(nest))) != root)


def _total(facts: Facts, found: Contraction, nest: frozenset[int]) -> int:
    """The last sum on a contraction's way that adds along what both of its factors have."""
    at, last = found.fold, found.fold
    both = facts.axes[found.left] & facts.axes[found.right]
    while len(readers := set(facts.consumers[at]) & nest) == 1:
        (at,) = readers
        if facts.node(at).op is Op.FOLD:
            if str(facts.node(at).attrs[1]) not in both:
                break
            last = at
    return last


def _partial(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for node in facts.graph.nodes:
        axis = str(node.attrs[1]) if node.op is Op.FOLD else ""
        if axis and not isinstance(facts.graph.axes[axis].extent, int):
            yield from (x for x in _nearest_folds(facts, node.args[0]) if axis in facts.axes[x])


def _whole(facts: Facts, kept: frozenset[int]) -> Iterable[int]:
    for root in (*facts.roots, *kept):
        for at in facts.cone(root, kept - {root}):
            axis = str(facts.node(at).attrs[1]) if facts.node(at).op is Op.FOLD else ""
            if at != root and axis in facts.axes[root] and not isinstance(facts.graph.axes[axis].extent, int):
                yield at


def _nearest_folds(facts: Facts, at: int) -> Iterable[int]:
    stack = [at]
    while stack:
        x = stack.pop()
        if facts.node(x).op is Op.FOLD:
            yield x
        else:
            stack += facts.node(x).args


def _index(facts: Facts, at: int) -> bool:
    return facts.node(at).op in (Op.CONST, Op.IOTA)


RULES = (
    KeepRule("result", "The graph is there for it.", _results, exact=True),
    KeepRule("gathered", "It is read at other places than its own.", _gathered, exact=True),
    KeepRule("factor", "A contraction reads each element of it many times.", _factors),
    KeepRule("invariant", "It would be computed again for every tile of a contraction's columns.", _invariant),
    KeepRule("sum", "Registers hold the sums of one product; what looks across its columns comes after it.", _sums),
    KeepRule("whole", "It is folded over all rows, and every row needs it.", _whole),
    KeepRule("partial", "It is a block's share of a fold over something of any length.", _partial),
)
