"""What a translation sees: the draft, the states, and what PyTorch says of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import COMPUTED, Array
from headrace.compiler.ir import DType, Op, Write

Number = bool | int | float
Value = Array | Number | torch.SymInt
# Translates one operation: the context, then the operation's own arguments, tensors as Arrays.
Lower = Callable[..., Any]


@dataclass(slots=True)
class Context:
    """Where translations write.

    Attributes:
        draft: The graph so far.
        symbols: Our name of each symbolic size of the exported program.
        writes: Changes of states so far.
        result: The exported program's own record of the current result: a fake tensor, or several.
    """

    draft: Draft
    symbols: Mapping[str, str] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    result: Any = None

    @property
    def dtype(self) -> DType:
        """Element type of the current result."""
        return values.dtype_of(self.result.dtype)

    def extent(self, size: int | torch.SymInt) -> int | str:
        """A size as an axis has it."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.is_number:
            return int(expression)
        name = self.symbols.get(str(expression))
        if name is None:
            raise Refused(f"the length {expression} is no single symbol of {sorted(self.symbols.values())}")
        return name

    def fresh(self, size: int | torch.SymInt) -> str | None:
        """A new axis of this size; none for size 1."""
        extent = self.extent(size)
        return None if extent == 1 else self.draft.fresh(extent)

    def declared(self, size: int | torch.SymInt) -> str | None:
        """The caller's only axis of this symbolic size: its index is what counting up to that size gives."""
        extent = self.extent(size)
        named = [a.name for a in self.draft.axes.values() if a.extent == extent and not a.name.startswith("$")]
        return named[0] if isinstance(extent, str) and len(named) == 1 else None

    def count(self, axis: str | None) -> int:
        """int32 node: how long an axis is."""
        if axis is None:
            return self.draft.const(1, DType.I32)
        extent = self.draft.extent(axis)
        if isinstance(extent, int):
            return self.draft.const(extent, DType.I32)
        return self.draft.add(self.draft.fold("max", axis, self.draft.iota(axis)), self.draft.const(1, DType.I32))

    def elements(self, axes: Iterable[str | None]) -> int:
        """How many elements these axes have together, which must be known."""
        extents = [self.draft.extent(a) for a in axes if a]
        if not all(isinstance(n, int) for n in extents):
            raise Refused("the number of elements is a symbol")
        return math.prod(int(n) for n in extents)

    def number(self, value: Number | torch.SymInt, dtype: DType) -> int:
        """A node for a scalar argument."""
        if not isinstance(value, torch.SymInt):
            if isinstance(value, float) and dtype not in (DType.F16, DType.BF16, DType.F32, DType.F64):
                raise Refused(f"{value} is no {dtype}")
            return self.draft.const(value, dtype)
        extent = self.extent(value)
        if isinstance(extent, int):
            return self.draft.const(extent, dtype)
        axis = next((a for a in self.draft.axes.values() if a.extent == extent), None)
        if axis is None:
            raise Refused(f"the symbol {extent} is the length of no axis")
        return values.cast(self.draft, self.count(self.draft.find(axis.name)), dtype)

    def array(self, value: Value, dtype: DType | None = None) -> Array:
        """An argument as an array of an element type."""
        if not isinstance(value, Array):
            return Array(self.number(value, dtype or self.dtype))
        if dtype is None:
            return value
        return Array(values.cast(self.draft, value.node, dtype), value.dims)

    def operands(self, *args: Value, dtype: DType | None = None) -> tuple[list[int], tuple[str | None, ...]]:
        """Arguments of an elementwise operation, of one type and walking together."""
        kind = dtype or self.dtype
        if kind not in COMPUTED and kind is not DType.BOOL:
            raise Refused(f"arithmetic on {kind} is not translated")
        return values.broadcast(self.draft, [self.array(a, kind) for a in args])

    def read_state(self, array: Array) -> tuple[str, int] | None:
        """State and version, if the array is one as it is read."""
        node = self.draft.nodes[array.node]
        declared = self.draft.inputs.get(str(node.attrs[0])) if node.op is Op.INPUT else None
        return (declared.state, declared.version) if declared is not None and declared.state else None

    def written(self, state: str) -> int:
        """Writes to a state so far."""
        return sum(w.state == state for w in self.writes)

    def materialize(self, array: Array, axes: Sequence[str | None]) -> int:
        """The array's node, with all of these axes even where it is the same everywhere along one."""
        draft, node = self.draft, array.node
        dtype = draft.dtype(node)
        for axis in axes:
            if axis is None or draft.find(axis) in draft.type(node).axes:
                continue
            # Always true, and not simplified away: it only adds the axis.
            args = (draft.iota(axis), draft.const(2**31 - 1, DType.I32))
            inside = draft.raw(Op.LESS, (), args)
            node = draft.raw(Op.SELECT, (), (inside, node, draft.const(0, dtype)))
        return node
