"""An array with an index put in place of an axis, where the index may leave the axis.

``gather(x, {k: i})`` means the nearest element where ``i`` is no index of ``k``, and says so at every leaf. Where such
elements do not count it is enough to put ``i`` for ``k`` everywhere: for all others both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.compiler.egraph import ClassId, ENode, Space, cheapest
from headrace.compiler.ir import Op
from headrace.compiler.rules.finding import selection
from headrace.compiler.rules.program import ProgramGraph


def simplest_forms(g: ProgramGraph, roots: Sequence[ClassId]) -> Mapping[ClassId, ENode]:
    """One cheap node of each class that some classes need, without cycles."""
    from headrace.compiler.rules.cost import CostModel

    return cheapest(Space(g, roots), CostModel(g))


def substitute(g: ProgramGraph, eclass: ClassId, axis: str, index: ClassId, forms: Mapping[ClassId, ENode]) -> ClassId:
    """What equals a class wherever the index is one of the axis.

    Args:
        g: Where.
        eclass: In a rebuilt graph.
        axis: Is replaced.
        index: int32; its axes are new to everything below the class.
        forms: Which node to follow in each class.
    """
    done: dict[ClassId, ClassId] = {}
    todo = [eclass]
    while todo:
        at = todo[-1]
        if axis not in g.facts(at).axes:
            done[at] = at
        if at in done:
            todo.pop()
            continue
        waiting = [child for child in forms[at].children if child not in done]
        if waiting:
            todo += waiting
        else:
            done[at] = _one(g, forms[at], axis, index, done)
    return done[eclass]


def _one(g: ProgramGraph, node: ENode, axis: str, index: ClassId, done: Mapping[ClassId, ClassId]) -> ClassId:
    w, op = g.write, Op(node.head.op)
    if op is Op.IOTA:
        divisor = node.head.attrs[1]
        return index if divisor == 1 else w.gather(w.iota(axis, divisor), {axis: index})
    if op is Op.INPUT:
        return w.gather(w.node(op, node.head.attrs, ()), {axis: index})
    if op is Op.GATHER and axis in node.head.attrs[0]:
        # The axis that is selected from is another one than that of the indices, if by the same name.
        return w.gather(node.children[0], {a: done[i] for a, i in selection(node).items()})
    if (op is Op.FOLD and node.head.attrs[1] == axis) or op is Op.SCATTER:
        return w.gather(g.add(node.head, node.children), {axis: index})
    return w.node(op, node.head.attrs, tuple(done[child] for child in node.children))
