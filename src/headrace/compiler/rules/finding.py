"""How rules look at an e-graph: by operations, products and sums, in any order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

from headrace.compiler.egraph import ClassId, EGraph, EGraphError, ENode, Match, Rule
from headrace.compiler.egraph.rules import Equality, Witness
from headrace.compiler.ir import Op
from headrace.compiler.rules.facts import RUNTIME
from headrace.compiler.rules.program import ProgramGraph

Bindings = dict[str, Any]
Find = Callable[[ProgramGraph, ClassId, ENode], Iterable[Bindings]]
Build = Callable[[ProgramGraph, Match], ClassId | None]
Holds = Callable[[ProgramGraph, Match], bool]

FACTORINGS = 24
"""Ways to write a class as a product that are looked at."""


def program(graph: EGraph) -> ProgramGraph:
    """The graph as what it is.

    Raises:
        EGraphError: It holds no programs.
    """
    if not isinstance(graph, ProgramGraph):
        raise EGraphError("these rules are about programs: make the e-graph as a ProgramGraph")
    return graph


def rule(
    name: str, theme: str, equality: Equality, ops: tuple[Op, ...], find: Find, build: Build,
    when: tuple[Holds, ...] = (), depth: int = 4, once: bool = True,
) -> Rule:  # fmt: skip
    """A rule whose left side is a function; its docstring says why the rule is true.

    Args:
        name: Unique.
        theme: The file that it stands in.
        equality: ``bit`` or ``real``.
        ops: What the nodes of the left side's root compute.
        find: Bindings of the matches at a node of a class; adds nothing to the graph.
        build: Adds the right side.
        when: Witnesses.
        depth: How many levels below the root ``find`` looks; where nothing changed in these it is not asked again.
        once: Whether the same bindings always give the same right side, whatever else becomes known.
    """

    def search(graph: EGraph) -> Iterator[Match]:
        g = program(graph)
        since, done = g.searched.get(name, 0), g.applied.get(name, set())
        found = sorted({root for op in ops for root in g.having(op.value)})
        if since:
            recent = g.recent(since, depth)
            found = [root for root in found if root in recent]
        names = {op.value for op in ops}
        for root in found:
            for node in g.nodes(root):
                if node.head.op in names:
                    for bindings in find(g, root, node):
                        if not once or (root, _key(bindings)) not in done:
                            yield Match(root, bindings)
        g.searched[name] = g.clock

    def construct(graph: EGraph, match: Match) -> ClassId | None:
        g = program(graph)
        if once:
            g.applied.setdefault(name, set()).add((match.root, _key(match)))
        return build(g, match)

    return Rule(
        name,
        theme,
        equality,
        search,
        construct,
        tuple(map(_witness, when)),
        (find.__doc__ or "").strip(),
    )


def _key(bindings: Any) -> Hashable:
    if isinstance(bindings, dict):
        return tuple((name, _key(value)) for name, value in bindings.items())
    return tuple(map(_key, bindings)) if isinstance(bindings, list) else bindings


def _witness(holds: Holds) -> Witness:
    return lambda graph, match: holds(program(graph), match)


def nodes(g: ProgramGraph, eclass: ClassId, op: Op) -> list[ENode]:
    """The nodes of a class that do an operation."""
    return [node for node in g.nodes(eclass) if node.head.op == op]


def pairs(node: ENode) -> Iterator[tuple[ClassId, ClassId]]:
    """The two arguments of a commutative operation, either way round."""
    a, b = node.children
    yield a, b
    if a != b:
        yield b, a


def scaled(g: ProgramGraph, eclass: ClassId) -> Iterator[tuple[ClassId, ClassId]]:
    """What a class is a constant multiple of, and the constant's class."""
    for node in nodes(g, eclass, Op.MUL):
        for x, c in pairs(node):
            if g.facts(c).const is not None and g.facts(x).const is None:
                yield x, c


def opposites(g: ProgramGraph, eclass: ClassId) -> Iterator[ClassId]:
    """What a class is the negative of."""
    for x, c in scaled(g, eclass):
        if g.facts(c).const == -1:
            yield x


def selection(node: ENode) -> dict[str, ClassId]:
    """The indices of a gather by axis."""
    return dict(zip(node.head.attrs[0], node.children[1:], strict=True))


def iota_of(g: ProgramGraph, eclass: ClassId) -> tuple[str, int] | None:
    """Axis and divisor, if the class is an axis' index."""
    for node in nodes(g, eclass, Op.IOTA):
        axis, divisor = node.head.attrs
        return axis, divisor
    return None


def factorings(g: ProgramGraph, eclass: ClassId, axis: str) -> list[tuple[ClassId, ...]]:
    """Ways to write a class as a product, each sorted. Factors that do not depend on the axis are not taken apart; of
    what depends on weights alone, only what does not depend on the axis is taken out."""
    start: tuple[ClassId, ...] = (g.find(eclass),)
    found = {start: None}
    todo = [start]
    while todo and len(found) < FACTORINGS:
        factors = todo.pop(0)
        for at, factor in enumerate(factors):
            facts = g.facts(factor)
            if axis not in facts.axes or len(factors) > 5:
                continue
            for node in nodes(g, factor, Op.MUL):
                a, b = map(g.find, node.children)
                if facts.level < RUNTIME and axis in g.facts(a).axes and axis in g.facts(b).axes:
                    continue
                finer = tuple(sorted((*factors[:at], *factors[at + 1 :], a, b)))
                if factor not in (a, b) and finer not in found:
                    found[finer] = None
                    todo.append(finer)
    return list(found)


def folds(g: ProgramGraph, eclass: ClassId, reducer: str) -> Iterator[tuple[str, ClassId, ClassId | None]]:
    """Axis, body and bound of the final folds in a class."""
    for node in nodes(g, eclass, Op.FOLD):
        if node.head.attrs[0] == reducer and node.head.attrs[2] == "final":
            yield node.head.attrs[1], node.children[0], node.children[1] if len(node.children) > 1 else None


def by_name(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    """Rules by their names."""
    return {each.name: each for each in rules}
