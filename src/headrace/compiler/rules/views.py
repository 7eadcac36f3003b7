"""Theme ``views``: selections move down until they end on inputs, or on what has to be in memory anyway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from headrace.compiler.egraph import ClassId, ENode, Match
from headrace.compiler.ir import ELEMENTWISE, Op
from headrace.compiler.rules.facts import RUNTIME
from headrace.compiler.rules.finding import Bindings, iota_of, nodes, rule, selection
from headrace.compiler.rules.index import Affine, affine, write
from headrace.compiler.rules.program import ProgramGraph

THEME = "views"
_ELEMENTWISE = frozenset(op.value for op in ELEMENTWISE)


def pick(g: ProgramGraph, x: ClassId, index: Mapping[str, ClassId]) -> ClassId:
    """``x`` at these indices, as far as it has their axes."""
    return g.write.gather(x, index)


def _find_identity(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """x at an axis' own index is x, and so is x along an axis that it does not have."""
    axes = g.facts(node.children[0]).axes
    given = selection(node)
    kept = {a: i for a, i in given.items() if a in axes and iota_of(g, i) != (a, 1)}
    if len(kept) < len(given):
        yield {"source": node.children[0], "kept": kept}


def _find_nested(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """x at i at j = x at i(j)."""
    for inner in nodes(g, node.children[0], Op.GATHER):
        if g.find(inner.children[0]) != g.find(node.children[0]):
            yield {"outer": node, "inner": inner}


def _compose(g: ProgramGraph, m: Match) -> ClassId:
    outer, inner = selection(m["outer"]), selection(m["inner"])
    origin = m["inner"].children[0]
    composed = {axis: pick(g, index, outer) for axis, index in inner.items()}
    kept = g.facts(origin).axes - inner.keys()
    return g.write.gather(origin, {a: i for a, i in outer.items() if a in kept} | composed)


def _find_elementwise(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """f(x, y) at i = f(x at i, y at i)."""
    for inner in g.nodes(node.children[0]):
        if inner.head.op in _ELEMENTWISE:
            yield {"index": selection(node), "source": node.children[0], "inner": inner}


def _into_elementwise(g: ProgramGraph, m: Match) -> ClassId:
    index, inner = m["index"], m["inner"]
    return g.write.node(Op(inner.head.op), inner.head.attrs, tuple(pick(g, x, index) for x in inner.children))


def _find_fold(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(k, x) at i = fold(k, x at i) over any axis but the selected ones. If i has an axis of the name k, the
    folded one is renamed first."""
    index = selection(node)
    for inner in nodes(g, node.children[0], Op.FOLD):
        if inner.head.attrs[1] not in index:
            yield {"index": index, "source": node.children[0], "inner": inner}


def repeats_nothing(g: ProgramGraph, m: Match) -> bool:
    """There are no more elements to compute after the selection than before; reading more of them is no work."""
    source = g.facts(m["source"])
    return source.level < RUNTIME or source.view or no_larger(g, m["index"])


def no_larger(g: ProgramGraph, index: Mapping[str, ClassId]) -> bool:
    """Whether the axes of some indices together are certainly no longer than the axes that they select from."""
    before, after = 1, 1
    symbols: Counter[str] = Counter()
    for axes, sign in ((index.keys(), 1), (_axes(g, index), -1)):
        for axis in axes:
            extent = g.axes[axis].extent
            if isinstance(extent, str):
                symbols[""] += sign  # one length for another: picking some tokens of all
            elif sign > 0:
                before *= extent
            else:
                after *= extent
    return after <= before and symbols[""] >= 0


def _axes(g: ProgramGraph, index: Mapping[str, ClassId]) -> frozenset[str]:
    return frozenset().union(*(g.facts(i).axes for i in index.values()))


def varies_by_weights(g: ProgramGraph, m: Match) -> bool:
    """Only weights differ along the selected axes, so that it is they that are selected from; or one element is picked
    for each of another axis."""
    if not g.facts(m["source"]).live & m["index"].keys():
        return True
    facts = [g.facts(i) for i in m["index"].values()]
    return len(facts) == 1 and facts[0].level == RUNTIME and facts[0].view and len(facts[0].axes) == 1


def _into_fold(g: ProgramGraph, m: Match) -> ClassId:
    index, inner = m["index"], m["inner"]
    reducer, axis, mode = inner.head.attrs
    body, bounds = inner.children[0], inner.children[1:]
    taken = _axes(g, index)
    if axis in taken:
        if mode != "final":
            return m.root
        axis = g.twin(axis, taken | g.facts(body).axes)
        body = pick(g, body, {inner.head.attrs[1]: g.write.iota(axis)})
    bound = pick(g, bounds[0], index) if bounds else None
    return g.write.fold(reducer, axis, pick(g, body, index), bound, mode)


def _find_refinement(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """x at (i + e) = (x at (i + d)) at d = e, for an axis d and an e that is certainly one of its indices: then what
    lies behind x at (i + d) is computed once for all of them."""
    if len(node.children) != 2 or g.facts(root).level < RUNTIME:
        return
    source, index = map(g.find, node.children)
    (axis,) = node.head.attrs[0]
    form = affine(g, index)
    for _, other in g.parents(source):
        if other == node or other.head.op != Op.GATHER or len(other.children) != 2:
            continue
        if g.find(other.children[0]) != source or other.head.attrs[0] != (axis,):
            continue
        base = affine(g, other.children[1])
        for atom, factor in base.terms:
            inner = iota_of(g, atom)
            if inner is None or inner[1] != 1 or factor != 1:
                continue
            wanted = form.plus(base.plus(Affine(((atom, 1),), 0), -1), -1)
            low, high = wanted.range(g)
            extent = g.axes[inner[0]].extent
            if isinstance(extent, int) and low >= 0 and high < extent and wanted != Affine(((atom, 1),), 0):
                yield {"base": other, "axis": inner[0], "wanted": wanted}


def _refine(g: ProgramGraph, m: Match) -> ClassId:
    base = g.add(m["base"].head, m["base"].children)
    return g.write.gather(base, {m["axis"]: write(g, m["wanted"])})


RULES = (
    rule("select all", THEME, "bit", (Op.GATHER,), _find_identity,
         lambda g, m: g.write.gather(m["source"], m["kept"]) if m["kept"] else m["source"], depth=1),
    rule("compose selections", THEME, "bit", (Op.GATHER,), _find_nested, _compose, depth=1),
    rule("select from elementwise", THEME, "bit", (Op.GATHER,), _find_elementwise, _into_elementwise,
         (repeats_nothing,), depth=1),
    rule("select from fold", THEME, "bit", (Op.GATHER,), _find_fold, _into_fold,
         (repeats_nothing, varies_by_weights), depth=1),
    rule("refine selection", THEME, "bit", (Op.GATHER,), _find_refinement, _refine, depth=3),
)  # fmt: skip
