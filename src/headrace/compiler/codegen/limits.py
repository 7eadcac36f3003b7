"""How far a nest's loops go along axes that are folded only so far.

Attention over blocks of 256 positions would read all of them for a sequence of ten tokens. The loops end at the
farthest bound that any row of a task has; each row's own bound still decides what counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import replace

from headrace.compiler.codegen.cone import CannotEmit, Cone
from headrace.compiler.codegen.emit import index_of
from headrace.compiler.codegen.nest import LevelKind
from headrace.compiler.ir import Op
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.facts import Facts

Bounds = tuple[int, ...]


def limits_of(facts: Facts, nest: Nest, local: Set[int]) -> dict[str, Bounds]:
    """Axes of known length that a nest needs only so far, each with the nodes that say how far.

    Args:
        facts: The graph.
        nest: What is computed.
        local: Kept values that are read in the task that computes them alone.
    """
    found: dict[str, Bounds] = {}
    for at in sorted(nest.nodes):
        node = facts.node(at)
        if node.op is Op.FOLD and isinstance(facts.graph.axes[str(node.attrs[1])].extent, int):
            axis = str(node.attrs[1])
            found[axis] = tuple(dict.fromkeys((*found.get(axis, ()), *(node.args[1:] or (-1,)))))
    return {
        axis: bounds for axis, bounds in found.items() if -1 not in bounds and _ends(facts, nest, axis, bounds, local)
    }


def _ends(facts: Facts, nest: Nest, axis: str, bounds: Bounds, local: Set[int]) -> bool:
    """Whether nobody reads what the nest leaves behind the bounds."""
    along = [root for root in nest.roots if axis in facts.axes[root]]
    return all(root in local and zero_behind(facts, root).get(axis) in bounds for root in along)


def zero_behind(facts: Facts, at: int) -> dict[str, int]:
    """Axis to the node that says where a kept value ends: what lies behind is never counted, and stored as zero.

    Only bounds that can be told where the value is computed.
    """
    return {
        axis: bound
        for axis, bound in facts.ends[at].items()
        if axis in facts.axes[at]
        and isinstance(facts.graph.axes[axis].extent, int)
        and facts.axes[bound] <= facts.axes[at]
        and not facts.costly[bound]
        and at not in facts.cone(bound, frozenset())
    }


def limit_name(axis: str, bounds: Bounds) -> str:
    """The variable of a limit where tasks are begun."""
    return "_".join(["limit", axis, *map(str, bounds)])


def limit_lines(cone: Cone, axis: str, bounds: Bounds) -> list[str]:
    """Statements that find the farthest bound of the rows from ``begin`` to ``end``.

    Args:
        cone: A nest without values, whose levels are those of the task and ``row``.
        axis: What is folded.
        bounds: The nodes that say how far.
    """
    extent, name = str(cone.graph.axes[axis].extent), limit_name(axis, bounds)
    try:
        found = [index_of(cone, bound) for bound in bounds]
    except CannotEmit:  # it is computed, or differs along other axes than a task's own
        return [f"const int64_t {name} = {extent};"]
    lines = [f"int64_t {name} = 0;"]
    for bound in found:
        step = f"{name} = hr_larger({name}, {bound});"
        by_row = re.search(r"\brow\b", bound)
        lines.append(f"for (int64_t row = begin; row < end; row++) {step}" if by_row else step)
    return [*lines, f"{name} = hr_smaller({name}, {extent});"]


def without_groups(cone: Cone) -> Cone:
    """The same nest with every member of a group on its own, where no instruction does what the group asks for."""
    levels = tuple(
        replace(x, kind=LevelKind.UNROLL, variable=f"{x.axis}_member") if x.kind is LevelKind.DOT else x
        for x in cone.levels
    )
    return replace(cone, levels=levels)


def symbols(limits: Mapping[str, Bounds]) -> dict[str, str]:
    """The parameters of a nest's function, by their axes."""
    return {axis: f"limit_{axis}" for axis in limits}
