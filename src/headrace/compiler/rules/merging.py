"""Theme ``merging``: products of one array with several weights as one product with all of them.

Not among the rules that ``optimize`` uses by itself: a schedule can run contractions side by side that read the same
array, and then nothing has to be taken apart afterwards. A search may add them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from headrace.compiler.egraph import ClassId, EGraph, Match, Rule
from headrace.compiler.ir import DType, Op
from headrace.compiler.rules.facts import RUNTIME
from headrace.compiler.rules.finding import nodes, pairs, program
from headrace.compiler.rules.program import ProgramGraph

THEME = "merging"


class Product(NamedTuple):
    """``fold(sum, k, x * weight)``, the weight having one axis that ``x`` has not.

    Attributes:
        root: The class of the fold.
        weight: The class of the weight.
        axis: That axis.
        length: Of the axis.
    """

    root: ClassId
    weight: ClassId
    axis: str
    length: int


def _products(g: ProgramGraph) -> dict[tuple[ClassId, str], dict[ClassId, Product]]:
    """By array and folded axis: the products, by their class."""
    found: dict[tuple[ClassId, str], dict[ClassId, Product]] = {}
    for root in g.having(Op.FOLD):
        for node in nodes(g, root, Op.FOLD):
            reducer, k, mode = node.head.attrs
            if reducer == "sum" and mode == "final" and len(node.children) == 1:
                for product in nodes(g, node.children[0], Op.MUL):
                    for x, weight in pairs(product):
                        left = g.facts(weight).axes - g.facts(x).axes
                        if len(left) == 1 and _fits(g, x, weight, k):
                            (axis,) = left
                            length = g.axes[axis].extent
                            if isinstance(length, int) and axis not in g.joined:
                                each = Product(root, weight, axis, length)
                                found.setdefault((x, k), {}).setdefault(root, each)
    return found


def _fits(g: ProgramGraph, x: ClassId, weight: ClassId, k: str) -> bool:
    known = g.facts(weight).level < RUNTIME <= g.facts(x).level
    return known and k in g.facts(weight).axes and k in g.facts(x).axes


def _search(graph: EGraph) -> Iterable[Match]:
    """fold(sum, k, x * a) and fold(sum, k, x * b) are parts of fold(sum, k, x * c), c being a and b one after the other
    along a new axis. Each element is the same sum as before."""
    g = program(graph)
    for (x, k), found in sorted(_products(g).items()):
        products = [found[root] for root in sorted(found)]
        distinct = {each.axis for each in products}
        if len(products) > 1 and len(distinct) == len(products):
            yield Match(products[0].root, {"x": x, "k": k, "products": products})


def _merge(graph: EGraph, m: Match) -> ClassId:
    g = program(graph)
    w, products = g.write, m["products"]
    starts = [0, *accumulate(each.length for each in products)]
    joint = g.axis("_".join(each.axis for each in products), starts[-1])
    g.joined.add(joint)
    weights = [
        w.gather(each.weight, {each.axis: w.add(w.iota(joint), w.const(-start, DType.I32))})
        for each, start in zip(products, starts, strict=False)
    ]
    together = weights[-1]
    for part, end in reversed([*zip(weights[:-1], starts[1:], strict=False)]):
        together = w.select(w.less(w.iota(joint), w.const(end, DType.I32)), part, together)
    result = w.fold("sum", m["k"], w.mul(m["x"], together))
    parts = [
        w.gather(result, {joint: w.add(w.iota(each.axis), w.const(start, DType.I32))})
        for each, start in zip(products, starts, strict=False)
    ]
    for each, part in zip(products[1:], parts[1:], strict=True):
        g.union(each.root, part)
    return parts[0]


RULES = (Rule("merge products", THEME, "bit", _search, _merge, doc=_search.__doc__ or ""),)
