"""From an exported program to a draft, one ATen operation after the other."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from headrace.compiler.capture import values
from headrace.compiler.capture.arguments import Argument
from headrace.compiler.capture.context import Context
from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.errors import Refused, Unsupported
from headrace.compiler.capture.ranges import EVERYTHING
from headrace.compiler.capture.table import TABLE
from headrace.compiler.capture.values import Array, dtype_of
from headrace.compiler.ir import Input, InvalidProgram, Kind, Type

aten = torch.ops.aten
# Checks that export has made already.
NOTHING = (
    aten._assert_tensor_metadata.default, aten._assert_scalar.default, aten.sym_constrain_range_for_size.default,
    aten._assert_async.msg,
)  # fmt: skip
PREFIX = "captured."
EXPORTER = "compiler/capture/arguments.py"  # its frames say nothing of the model


@dataclass(slots=True)
class Lowered:
    """A program as a draft.

    Attributes:
        segments: For each segment, the values of earlier ones that it takes, by name.
        outputs: For each segment, the values that later ones take or the program returns, by name.
        writes: How many writes there are after each segment.
        weights: The array of each weight, its dimensions in PyTorch's order.
        results: What the function returns.
    """

    context: Context
    segments: list[dict[str, Array]]
    outputs: list[dict[str, Array]]
    writes: list[int] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    results: list[Array] = field(default_factory=list)


def lower(
    exported: ExportedProgram,
    arguments: Sequence[Argument],
    segment_of: Mapping[fx.Node, int],
    origin: str = "",
    prefix: str = PREFIX,
) -> Lowered:
    """Translate a program.

    Args:
        exported: What ``export`` made of the function.
        arguments: What it takes.
        segment_of: Which segment each node belongs to, counted from 0 in order.
        origin: Where the function is, to name in errors where nothing better is known.
        prefix: What to leave out in front of weights' names.

    Raises:
        Unsupported: An operation, or the way it is used, has no translation.
    """
    return _Lowering(exported, arguments, segment_of, origin, prefix).run()


class _Lowering:
    def __init__(
        self,
        exported: ExportedProgram,
        arguments: Sequence[Argument],
        segment_of: Mapping[fx.Node, int],
        origin: str,
        prefix: str,
    ) -> None:
        self.exported = exported
        self.arguments = arguments
        self.segment_of = segment_of
        self.origin = origin
        self.prefix = prefix
        self.env: dict[fx.Node, Any] = {}
        self.segment = 0
        count = max(segment_of.values(), default=0) + 1
        self.lowered = Lowered(Context(Draft()), [{} for _ in range(count)], [{} for _ in range(count)])
        self.context = self.lowered.context

    def run(self) -> Lowered:
        """Placeholders, then operations, then results."""
        self._placeholders()
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                segment = self.segment_of[node]
                while self.segment < segment:
                    self.lowered.writes.append(len(self.context.writes))
                    self.segment += 1
                self.env[node] = self._call(node)
        self.lowered.writes.append(len(self.context.writes))
        self._results()
        return self.lowered

    # --- what goes in

    def _placeholders(self) -> None:
        nodes = [n for n in self.exported.graph.nodes if n.op == "placeholder"]
        given = iter(self.arguments)
        symbols: dict[str, str] = {}
        pairs = list(zip(nodes, self.exported.graph_signature.input_specs, strict=True))
        for node, spec in pairs:
            if spec.kind is InputKind.USER_INPUT:
                argument = next(given)
                for size, axis in zip(node.meta["val"].shape, argument.axes, strict=True):
                    if isinstance(size, torch.SymInt) and isinstance(axis.extent, str):
                        symbols[str(size.node.expr)] = axis.extent
                self.env[node] = self._argument(argument)
        self.context.symbols = symbols
        for node, spec in pairs:
            if spec.kind is not InputKind.USER_INPUT:
                self.env[node] = self._weight(node, str(spec.target))

    def _argument(self, argument: Argument) -> Array:
        draft = self.context.draft
        dims = [None if a.extent == 1 else draft.axis(a) for a in argument.axes]
        kind = Type(dtype_of(argument.dtype), tuple(sorted(a for a in dims if a)))
        if argument.state:
            draft.states[argument.name] = kind
            node = draft.read(argument.name, 0)
        else:
            promise = EVERYTHING if argument.least is None else (argument.least, float("inf"))
            node = draft.declare(Input(argument.name, kind, Kind.ARGUMENT), promise)
        self.lowered.arrays[argument.name] = values.make(draft, node, dims)
        return self.lowered.arrays[argument.name]

    def _weight(self, node: fx.Node, target: str) -> Array:
        draft, value = self.context.draft, node.meta["val"]
        name = target.removeprefix(self.prefix)
        owner = name.split(".")[-2 if name.endswith((".weight", ".bias")) else -1]
        dims = [self._weight_axis(n, owner, i) for i, n in enumerate(value.shape)]
        kind = Type(dtype_of(value.dtype), tuple(sorted(a for a in dims if a)))
        array = values.make(draft, draft.declare(Input(name, kind, Kind.WEIGHT)), dims)
        self.lowered.arrays[name] = array
        return array

    def _weight_axis(self, size: Any, owner: str, at: int) -> str | None:
        extent = self.context.extent(size)
        return None if extent == 1 else self.context.draft.fresh(extent, owner, str(at))

    # --- operations

    def _call(self, node: fx.Node) -> Any:
        if node.target in NOTHING:
            return None
        if node.target is operator.getitem:
            return self._argument_value(node.args[0])[node.args[1]]
        result = node.meta.get("val")
        if isinstance(result, int | torch.SymInt | torch.SymBool):
            return result
        name, translation = str(node.target), TABLE.get(node.target)
        if translation is None:
            raise Unsupported(name, self._where(node))
        self.context.result = result
        args = [self._argument_value(a) for a in node.args]
        options = {key: self._argument_value(a) for key, a in node.kwargs.items()}
        try:
            made = translation(self.context, *args, **options)
            self._check(made, result, name)
        except Refused as refused:
            raise Unsupported(name, self._where(node), str(refused)) from None
        return made

    def _argument_value(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._argument_value(a) for a in argument]
        return self._value(argument) if isinstance(argument, fx.Node) else argument

    def _value(self, node: fx.Node) -> Any:
        """A node's value as the current segment sees it: what an earlier one computed has become an input."""
        value = self.env[node]
        made = self.segment_of.get(node, self.segment)
        if made == self.segment or node.op == "placeholder":
            return value
        return self._carried(value, node.name, made)

    def _carried(self, value: Any, name: str, made: int) -> Any:
        if isinstance(value, list):
            return [self._carried(v, f"{name}.{i}", made) for i, v in enumerate(value)]
        draft = self.context.draft
        if not isinstance(value, Array) or draft.pure[value.node] or self._is_leaf(value):
            return value
        taken = self.lowered.segments[self.segment]
        if name not in taken:
            self.lowered.outputs[made].setdefault(name, value)
            taken[name] = Array(draft.declare(Input(name, draft.type(value.node), Kind.VALUE)), value.dims)
        return taken[name]

    def _is_leaf(self, value: Array) -> bool:
        declared = self.context.draft.inputs.get(str((*self.context.draft.nodes[value.node].attrs, "")[0]))
        return declared is not None and declared.kind in (Kind.WEIGHT, Kind.ARGUMENT)

    def _check(self, made: Any, result: Any, name: str) -> None:
        """Whether a translation has the dimensions and element type that PyTorch says: a mistake of ours if not."""
        pairs = zip(made, result, strict=True) if isinstance(made, list) else [(made, result)]
        draft = self.context.draft
        for array, told in pairs:
            extents = [1 if a is None else draft.extent(a) for a in array.dims]
            expected = [self.context.extent(n) for n in told.shape]
            if extents != expected or draft.dtype(array.node) is not dtype_of(told.dtype):
                raise InvalidProgram(
                    f"{name} came out as {draft.dtype(array.node)}{extents}, not {told.dtype}{expected}"
                )

    # --- what comes out

    def _results(self) -> None:
        changed: set[str] = set()
        (output,) = [n for n in self.exported.graph.nodes if n.op == "output"]
        for spec, node in zip(self.exported.graph_signature.output_specs, output.args[0], strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                if not isinstance(node, fx.Node) or not isinstance(self.env[node], Array):
                    raise Unsupported("output", "", f"the function returns {node}, which is no tensor")
                self.lowered.results.append(self._value(node))
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                changed.add(self._changed_state(node, str(spec.target)))
            else:
                raise Unsupported("output", "", f"the function changes {spec.target} ({spec.kind.name})")
        kept = {w.state for w in self.context.writes} - changed
        if kept:
            raise Unsupported("index_put", self.origin, f"a changed copy is made of the states {sorted(kept)}")

    def _changed_state(self, node: fx.Node, target: str) -> str:
        """The state that a program changes, if all its writes made what the function leaves in it."""
        read = self.context.read_state(self.env[node])
        if read is None or read[1] != self.context.written(read[0]):
            raise Unsupported("copy_", self._where(node), f"the input {target} is changed otherwise than by index_put")
        return read[0]

    def _where(self, node: fx.Node) -> str:
        """Module path and source line of a node, as far as they are known."""
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        lines = [line.strip() for line in trace if line.strip().startswith("File ") and EXPORTER not in line]
        place = ", ".join(part.strip() for part in lines[-1].removeprefix("File ").split(",")[:2]) if lines else ""
        return ", ".join(part for part in (*stack[-1:], place or self.origin) if part)
