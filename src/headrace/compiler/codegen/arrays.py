"""The arrays of a program, and how the functions of a part find them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from headrace.compiler.codegen.cone import Buffer
from headrace.compiler.codegen.layout import Layout
from headrace.compiler.ir import DType, Kind, Op, Part
from headrace.compiler.schedule.plan import PartPlan


@dataclass(frozen=True, slots=True)
class Array:
    """A piece of memory that a program wants, or is given.

    Attributes:
        name: Its own; of a weight or state with a ``*`` for the repetition.
        dtype: Its elements.
        axes: Its axes, sorted.
        layout: Where they lie.
        rows: The symbol that says how long the outermost axis is; empty if that is known.
        repeats: What replaces the ``*``, repetition by repetition.
        record: The weights that lie in records with it, itself too, if it shares such.
        offset: Bytes of a record before its own.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    layout: Layout
    rows: str = ""
    repeats: tuple[str, ...] = ("",)
    record: tuple[str, ...] = ()
    offset: int = 0


@dataclass(slots=True)
class Inventory:
    """All arrays of a program, each kind with its own table of pointers."""

    weights: dict[str, Array] = field(default_factory=dict)
    arguments: dict[str, Array] = field(default_factory=dict)
    states: dict[str, Array] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    scratch: int = 0  # bytes a thread
    turns: dict[str, int] = field(default_factory=dict)  # which of its two buffers a value is in

    def slot(self, table: dict[str, Array], array: Array) -> int:
        """The number of an array in its table, entered if it is new; one that lies in two ways is there twice."""
        keys = (array.name, *(f"{array.name} ({n})" for n in range(2, len(table) + 2)))
        key = next(k for k in keys if k not in table or table[k].layout == array.layout)
        table.setdefault(key, array)
        return list(table).index(key)


class PartArrays:
    """The memory of a part: how its functions find each array.

    Args:
        part: The part.
        plan: Its schedule.
        arrays: Where its arrays are noted.
    """

    def __init__(self, part: Part, plan: PartPlan, arrays: Inventory) -> None:
        self.part = part
        self.plan = plan
        self.facts = plan.facts
        self.arrays = arrays
        self.pointers: dict[int, Buffer] = {}  # inputs and kept values
        self.setup: dict[int, str] = {}  # how their pointers are found
        self.local: dict[int, Layout] = {}  # kept values in a thread's own memory
        self.common: dict[int, str] = {}  # of these, where those lie that a prologue computes for all threads
        self.results: dict[int, list[Buffer]] = {}  # where kept values go
        self.places: dict[str, str] = {}  # how the pointers of results are found
        self._inputs()
        self._kept()

    def _inputs(self) -> None:
        graph = self.facts.graph
        for at, node in enumerate(graph.nodes):
            if node.op is not Op.INPUT:
                continue
            declared = graph.inputs[str(node.attrs[0])]
            layout = self.plan.layouts[at]
            name = declared.state or declared.name
            if declared.kind is Kind.VALUE:
                continue
            array = self._array(name, declared.type.dtype, declared.type.axes, layout)
            if share := self.plan.shares.get(at):
                record = tuple(str(self.facts.node(x).attrs[0]) for x in share.members)
                array = replace(array, record=record, offset=share.offset)
            table = {Kind.WEIGHT: self.arrays.weights, Kind.STATE: self.arrays.states}.get(
                declared.kind, self.arrays.arguments
            )
            slot = self.arrays.slot(table, array)
            self.pointers[at] = Buffer(
                f"in_{c_name(name)}",
                array.dtype,
                layout,
                padded=declared.kind is not Kind.STATE,
                streamed=declared.kind is Kind.WEIGHT,
                pages=self.plan.page_tokens if declared.kind is Kind.STATE else 0,
            )
            kind = {Kind.WEIGHT: "weight", Kind.STATE: "state"}.get(declared.kind)
            place = f"s->{kind}s[repeat * s->{kind}_count + {slot}]" if kind else f"s->arguments[{slot}]"
            self.setup[at] = place
        self._values()

    def _values(self) -> None:
        """Values that parts hand on: a part that runs several times reads and writes two buffers in turn."""
        graph = self.facts.graph
        for at, node in enumerate(graph.nodes):
            declared = graph.inputs[str(node.attrs[0])] if node.op is Op.INPUT else None
            if declared is None or declared.kind is not Kind.VALUE:
                continue
            layout = self.plan.layouts[at]
            self.pointers[at] = Buffer(f"in_{c_name(declared.name)}", declared.type.dtype, layout)
            self.setup[at] = self._value_place(declared.name, declared.type.dtype, declared.type.axes, layout, False)

    def _array(self, name: str, dtype: DType, axes: tuple[str, ...], layout: Layout) -> Array:
        first = layout.pieces[0] if layout.pieces else None
        symbol = self.facts.graph.axes[first.axis].extent if first and not first.extent else ""
        return Array(name, dtype, axes, layout, str(symbol), self.part.repeats)

    def _value_place(self, name: str, dtype: DType, axes: tuple[str, ...], layout: Layout, written: bool) -> str:
        """A part that reads and writes a value does so in two buffers in turn."""
        slots = [self.arrays.slot(self.arrays.buffers, self._array(f"{name}/{n}", dtype, axes, layout)) for n in (0, 1)]
        turn = self.arrays.turns.get(name, 0)
        if not self._turns(name):
            return f"s->buffers[{slots[turn]}]"
        turn = (turn + written) % 2
        return f"s->buffers[repeat % 2 ? {slots[1 - turn]} : {slots[turn]}]"

    def _turns(self, name: str) -> bool:
        declared = self.part.graph.inputs.get(name)
        return name in self.part.graph.outputs and declared is not None and declared.kind is Kind.VALUE

    def close(self) -> None:
        """Note where the next part finds what this one wrote."""
        for name in self.part.graph.outputs:
            turns = len(self.part.repeats) if self._turns(name) else 0
            self.arrays.turns[name] = (self.arrays.turns.get(name, 0) + turns) % 2

    def _kept(self) -> None:
        stages = [stage for stage in self.plan.stages if stage.groups and not stage.ragged]
        prologues = {root for stage in stages for nest in stage.prologue for root in nest.roots}
        for at, memory in self.plan.kept.items():
            names = [name for name, (node, _) in self.part.graph.outputs.items() if node == at]
            layout, dtype = memory.layout, self.facts.graph.types[at].dtype
            axes = self.facts.graph.types[at].axes
            for n, name in enumerate(names):
                buffer = Buffer(f"k{at}_{n}" if n else f"k{at}", dtype, layout)
                self.results.setdefault(at, []).append(buffer)
                self.places[buffer.pointer] = self._value_place(name, dtype, axes, layout, True)
            if memory.unread or (names and self.facts.node(at).op is Op.INPUT):
                continue
            self.pointers[at] = Buffer(f"k{at}", dtype, layout)
            if names:
                self.setup[at] = self.places[f"k{at}"]
                continue
            self.results[at] = [self.pointers[at]]
            array = self._array(f"{self.part.name}/{at}", dtype, axes, layout)
            if memory.local:
                self.local[at] = layout
            if memory.local and at in prologues and by_row(layout):
                self.common[at] = f"s->buffers[{self.arrays.slot(self.arrays.buffers, array)}]"
            elif not memory.local:
                self.setup[at] = f"s->buffers[{self.arrays.slot(self.arrays.buffers, array)}]"


def by_row(layout: Layout) -> bool:
    """Whether an array has a row for each token or sequence of a batch."""
    return bool(layout.pieces) and not layout.pieces[0].extent


def c_name(name: str) -> str:
    """A name that C allows."""
    return re.sub(r"\W+", "_", name)
