"""Which weight the constant side of a product is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.compiler.ir import Op, selected_axes
from headrace.compiler.schedule.facts import Contraction, Facts


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a weight.

    Attributes:
        name: Of the weight.
        along: What the weight's last axis, the one that a file cuts into blocks, is called here.
        rows: Index node by axis, for other axes of which rows are selected.
        factors: Nodes that the rows are multiplied by; they differ along ``along`` alone.
    """

    name: str
    along: str
    rows: Mapping[str, int] = field(default_factory=dict)
    factors: tuple[int, ...] = ()


class Selections:
    """Finds the weights of one graph.

    Args:
        facts: Of the graph.
        last: The last axis of each weight of the checkpoint, by name of the input.
    """

    def __init__(self, facts: Facts, last: Mapping[str, str]) -> None:
        self.facts, self.last = facts, last

    def of(self, at: int, outer: Mapping[str, int] | None = None) -> Selection | None:
        """The rows of a weight that a value is, if it is that.

        Args:
            at: The value.
            outer: A selection that is made of it.
        """
        at = self.facts.behind(at)
        node, index = self.facts.node(at), dict(outer or {})
        if node.op is Op.GATHER and not index:
            index = dict(zip(selected_axes(node), node.args[1:], strict=True))
            node = self.facts.node(node.args[0])
        name = str(node.attrs[0]) if node.op is Op.INPUT else ""
        if name not in self.last:
            return None
        along = last = self.last[name]
        if last in index:
            renamed = self.facts.node(index.pop(last))
            if renamed.op is not Op.IOTA or renamed.attrs[1] != 1:
                return None
            along = str(renamed.attrs[0])
        return Selection(name, along, index)

    def times_factors(self, found: Contraction) -> Selection | None:
        """The rows of a weight, times factors that differ along the folded axis alone, that a right side is.

        So it is where a norm's weights became part of the next ones.
        """
        weights: list[Selection | None] = []
        factors: list[int] = []
        for at, index in self._factors(found.right, {}):
            if not index and set(self.facts.graph.types[at].axes) <= {found.axis}:
                factors.append(at)
            else:
                weights.append(self.of(at, index))
        if len(weights) != 1 or weights[0] is None or weights[0].along != found.axis:
            return None
        return Selection(weights[0].name, weights[0].along, weights[0].rows, tuple(factors))

    def _factors(self, at: int, index: Mapping[str, int]) -> Iterator[tuple[int, dict[str, int]]]:
        """Factors of a value, each with the selection that is made of it."""
        node = self.facts.node(at)
        if node.op is Op.MUL:
            for factor in node.args:
                yield from self._factors(factor, index)
        elif node.op is Op.GATHER and not index and self.facts.node(node.args[0]).op is Op.MUL:
            yield from self._factors(node.args[0], dict(zip(selected_axes(node), node.args[1:], strict=True)))
        else:
            yield at, {axis: i for axis, i in index.items() if axis in self.facts.graph.types[at].axes}

    def made_of_weights(self, at: int) -> bool:
        """Whether a value depends on weights alone, at least one of them the checkpoint's."""
        if not self.facts.constant[at]:
            return False
        nodes = (self.facts.node(x) for x in self.facts.cone(at, frozenset()))
        return any(node.op is Op.INPUT and node.attrs[0] in self.last for node in nodes)
