"""Theme ``attention``: folds over positions in blocks, and the online softmax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.compiler.egraph import ClassId, EGraph, ENode, Match, Rule
from headrace.compiler.ir import DType, Op
from headrace.compiler.rules.finding import (
    Bindings,
    factorings,
    folds,
    nodes,
    opposites,
    pairs,
    program,
    rule,
)
from headrace.compiler.rules.program import Blocks, ProgramGraph
from headrace.compiler.rules.substitute import simplest_forms, substitute

THEME = "attention"


def _bounded(g: ProgramGraph) -> Iterator[tuple[ClassId, ENode, Blocks]]:
    for root in g.having(Op.FOLD.value):
        for node in nodes(g, root, Op.FOLD):
            extent = g.axes[node.head.attrs[1]].extent
            if len(node.children) == 2 and node.head.attrs[2] == "final" and extent in g.blocks:
                yield root, node, g.blocks[str(extent)]


def last_index(g: ProgramGraph, bound: ClassId, symbol: str) -> ClassId | None:
    """What is one less than a bound and certainly a valid index, so that the bound is neither 0 nor past the end."""
    for node in nodes(g, bound, Op.ADD):
        for position, one in pairs(node):
            facts = g.facts(position)
            if g.facts(one).const == 1 and facts.low >= 0 and symbol in facts.below:
                return position
    return None


def _search_long(graph: EGraph) -> Iterable[Match]:
    """fold(k, x, b) = fold(block, fold(i, x at k = n block + i, b - n block), floor((b - 1) / n) + 1): elements at b
    and after count in neither; b is at least 1 and no more than the length of k."""
    g = program(graph)
    found = [
        (root, node, blocks, last)
        for root, node, blocks in _bounded(g)
        for last in [last_index(g, node.children[1], blocks.symbol)]
        if last is not None
    ]
    if found:
        forms = simplest_forms(g, sorted({node.children[0] for _, node, _, _ in found}))
        for root, node, blocks, last in found:
            yield Match(root, {"node": node, "blocks": blocks, "last": last, "forms": forms})


def _cut_long(graph: EGraph, m: Match) -> ClassId:
    g = program(graph)
    w, node, blocks = g.write, m["node"], m["blocks"]
    reducer, axis, _ = node.head.attrs
    block, inner = g.axis(f"{axis}_block", blocks.count), g.axis(f"{axis}_inner", blocks.size)
    place = w.add(w.mul(w.iota(block), w.const(blocks.size, DType.I32)), w.iota(inner))
    body = substitute(g, node.children[0], axis, place, m["forms"])
    bound = w.add(node.children[1], w.mul(w.iota(block), w.const(-blocks.size, DType.I32)))
    count = w.add(w.gather(w.iota(axis, blocks.size), {axis: m["last"]}), w.const(1, DType.I32))
    return w.fold(reducer, block, w.fold(reducer, inner, body, bound), count)


def _find_online(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """With z = fold(max, i, x, b) and M = fold(max, block, z, n):
    fold(block, fold(i, exp2(x - M) y, b), n) = fold(block, exp2(z - M) fold(i, exp2(x - z) y, b), n),
    because exp2(x - M) = exp2(x - z) exp2(z - M); so each block needs its own maximum only."""
    reducer, block, mode = node.head.attrs
    if reducer != "sum" or mode != "final" or len(node.children) != 2:
        return
    count = g.find(node.children[1])
    for axis, body, bound in folds(g, node.children[0], "sum"):
        if bound is None:
            continue
        for factors in factorings(g, body, axis):
            for at, factor in enumerate(factors):
                for x, least in _relative(g, factor):
                    for z in _maxima(g, least, block, count):
                        if _is_maximum(g, z, axis, x, bound):
                            rest = factors[:at] + factors[at + 1 :]
                            yield {"block": block, "axis": axis, "bound": bound, "count": count, "x": x, "z": z,
                                   "M": least, "rest": rest}  # fmt: skip


def _relative(g: ProgramGraph, eclass: ClassId) -> Iterator[tuple[ClassId, ClassId]]:
    """``x`` and ``M`` of ``exp2(x - M)``."""
    for node in nodes(g, eclass, Op.EXP2):
        for difference in nodes(g, node.children[0], Op.ADD):
            for x, negative in pairs(difference):
                for least in opposites(g, negative):
                    yield x, least


def _maxima(g: ProgramGraph, eclass: ClassId, block: str, count: ClassId) -> Iterator[ClassId]:
    """What a class is the largest of, over so many blocks."""
    for axis, z, n in folds(g, eclass, "max"):
        if axis == block and n is not None and g.find(n) == count:
            yield z


def _is_maximum(g: ProgramGraph, z: ClassId, axis: str, x: ClassId, bound: ClassId) -> bool:
    return any(
        a == axis and g.find(body) == g.find(x) and b is not None and g.find(b) == g.find(bound)
        for a, body, b in folds(g, z, "max")
    )


def something_counts(g: ProgramGraph, m: Match) -> bool:
    """At least one block is folded, so that M is a number; and z is the same along the inner axis."""
    return g.facts(m["count"]).low >= 1 and m["axis"] not in g.facts(m["z"]).axes


def _online(g: ProgramGraph, m: Match) -> ClassId:
    w = g.write
    inner = w.exp2(w.add(m["x"], w.negative(m["z"])))
    outer = w.exp2(w.add(m["z"], w.negative(m["M"])))
    part = w.fold("sum", m["axis"], w.product([inner, *m["rest"]]), m["bound"])
    return w.fold("sum", m["block"], w.mul(outer, part), m["count"])


RULES = (
    Rule("cut long fold", THEME, "real", _search_long, _cut_long, doc=_search_long.__doc__ or ""),
    rule("online softmax", THEME, "real", (Op.FOLD,), _find_online, _online, (something_counts,), depth=8),
)
