"""What the captured function takes, and how it is exported."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound, ShapeEnv

from headrace.compiler.capture.contractions import KEPT
from headrace.compiler.capture.errors import Unsupported
from headrace.compiler.ir import Axis

# Sizes that stand for symbols while exporting; distinct, so that no two symbols seem to be one.
EXAMPLES = ((7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47), (61, 59, 53, 67, 71, 73, 79, 83, 89, 97, 101, 103))


# Of what PyTorch leaves whole, what its own rules take apart into operations that are translated.
aten = torch.ops.aten
DECOMPOSED = (aten.gelu.default, aten.leaky_relu.default, aten.hardtanh.default)

REFUSED_BY_EXPORT = (
    UserError, DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound, NotImplementedError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that each step brings, or a state.

    Attributes:
        name: Its name in the program.
        dtype: Element type.
        axes: The axis of each dimension, in order; equal names are one axis. An extent of 1 makes none.
        state: Whether it outlives the step and may be written.
        least: A promise: no element is below. Indices that are promised not to be negative save a test.
    """

    name: str
    dtype: torch.dtype
    axes: tuple[Axis, ...]
    state: bool = False
    least: int | None = None


class _Flat(nn.Module):
    """The function with its arguments in one list."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.captured = function

    def forward(self, arguments: Sequence[Tensor]) -> Any:
        return self.captured(*arguments)


def export(function: Any, arguments: Sequence[Argument], weights: nn.Module | None) -> ExportedProgram:
    """The function's ATen graph, without any weight being read.

    Args:
        function: Takes the arguments' tensors in order. A module, or a function that uses ``weights``.
        arguments: What it takes.
        weights: The module whose parameters it uses.
    """
    sizes = example_sizes(arguments)
    dims = {symbol: Dim(str(symbol), min=1) for symbol in sizes}
    dynamic = [{i: dims[x.extent] for i, x in enumerate(a.axes) if x.extent in dims} for a in arguments]
    module = _Flat(function)
    with torch.no_grad(), without_memory(weights) as mode, _explained():
        with mode:
            shapes = [[sizes.get(a.extent, a.extent) for a in argument.axes] for argument in arguments]
            examples = [torch.empty(s, dtype=a.dtype) for a, s in zip(arguments, shapes, strict=True)]  # type: ignore[arg-type]
        exported = torch.export.export(module, (examples,), dynamic_shapes=(dynamic,), strict=False)
        decomposed: ExportedProgram = exported.run_decompositions(_decompositions())
        return decomposed


def _decompositions() -> Any:
    """PyTorch's rules that take operations apart, with our exceptions."""
    table: Any = torch.export.default_decompositions()
    table.update({op: decomposition_table[op] for op in DECOMPOSED})
    for op in KEPT:
        table.pop(op, None)
    return table


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what export says of a function that it cannot see through into our error."""
    try:
        with warnings.catch_warnings():
            # PyTorch's own code, when it copies what it exports, uses what it is about to deprecate.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    except REFUSED_BY_EXPORT as error:
        lines = [line.strip(" -") for line in str(error).splitlines()] or [type(error).__name__]
        raise Unsupported("the function", "", " ".join(lines[:2])) from error


def example_sizes(arguments: Iterable[Argument], attempt: int = 0) -> Mapping[int | str, int]:
    """A size for each symbol, others for each attempt.

    Raises:
        ValueError: There are more symbols than sizes.
    """
    symbols = dict.fromkeys(a.extent for argument in arguments for a in argument.axes if isinstance(a.extent, str))
    examples = EXAMPLES[attempt]
    if len(symbols) > len(examples):
        raise ValueError(f"{len(symbols)} symbols are more than the {len(examples)} that export can tell apart")
    return dict(zip(symbols, examples, strict=False))


@contextmanager
def without_memory(module: nn.Module | None) -> Iterator[FakeTensorMode]:
    """Let a module's parameters be tensors without memory, so that a model on the meta device exports as well."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    parts = [] if module is None else list(module.modules())
    taken = [(p._parameters, name, old) for p in parts for name, old in p._parameters.items() if old is not None]
    made: dict[int, nn.Parameter] = {}
    try:
        for owner, name, parameter in taken:
            if id(parameter) not in made:
                with mode:
                    bare = torch.empty(parameter.shape, dtype=parameter.dtype)
                made[id(parameter)] = nn.Parameter(bare, requires_grad=False)
            owner[name] = made[id(parameter)]
        yield mode
    finally:
        for owner, name, parameter in taken:
            owner[name] = parameter
