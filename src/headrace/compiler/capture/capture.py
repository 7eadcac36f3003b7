"""``capture_function`` and ``capture_model``: from PyTorch to a ``Program``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.export import ExportedProgram

from headrace.compiler.capture.arguments import Argument, export
from headrace.compiler.capture.lowering import PREFIX, Lowered, lower
from headrace.compiler.capture.model_step import ModelStep, layer_states, step_arguments
from headrace.compiler.capture.rolling import repeat_rows, roll, segments
from headrace.compiler.capture.thinning import KEPT, StepOf, equal_layers, only
from headrace.compiler.ir import Part, Program, prune

NumpyArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """A program, and how its arrays relate to PyTorch's tensors.

    Attributes:
        program: What is computed.
        constants: Values of buffers and of constants in the code, in PyTorch's order of dimensions, by name.
        dims: For each weight, argument, state and result the axis of each of its tensor's dimensions, in order; empty
            where the size is 1 and there is none. Names of repeated weights and states hold a ``*``.
        apart: Parts that may run after the program's. Of a model: ``hidden``, the vectors that its logits are made of.
    """

    program: Program
    constants: Mapping[str, NumpyArray]
    dims: Mapping[str, tuple[str, ...]]
    apart: tuple[Part, ...] = ()

    def arrange(self, name: str, tensor: NumpyArray) -> NumpyArray:
        """A tensor as the program's input of that name has it: axes sorted, no dimension of size 1. No copy.

        Args:
            name: As in ``dims``.
            tensor: With the dimensions that PyTorch has it in.
        """
        dims = self.dims[name]
        bare = tensor.reshape([n for n, a in zip(tensor.shape, dims, strict=True) if a])
        axes = [a for a in dims if a]
        return bare.transpose(sorted(range(len(axes)), key=axes.__getitem__))

    def restore(self, name: str, array: NumpyArray) -> NumpyArray:
        """The reverse: a result in PyTorch's order of dimensions."""
        axes = [a for a in self.dims[name] if a]
        order = sorted(range(len(axes)), key=axes.__getitem__)
        sizes = iter(array.transpose(np.argsort(order)).shape)
        shape = [next(sizes) if a else 1 for a in self.dims[name]]
        return array.transpose(np.argsort(order)).reshape(shape)


def capture_function(
    function: Callable[..., Any] | nn.Module, arguments: Sequence[Argument], results: Sequence[str] = ("result",)
) -> Captured:
    """Any function of tensors as a program of one part.

    Args:
        function: A module or a function; takes the arguments' tensors in order and returns a tensor or a tuple.
        arguments: What it takes.
        results: Names of what it returns.

    Raises:
        Unsupported: It uses an operation that has no translation.
    """
    module = function if isinstance(function, nn.Module) else None
    exported = export(function, arguments, module)
    nodes = {n: 0 for n in exported.graph.nodes if n.op == "call_function"}
    lowered = lower(exported, arguments, nodes, _origin(function))
    return _assemble(exported, lowered, [""], results, PREFIX)


def _origin(function: Callable[..., Any]) -> str:
    """Where a function is defined."""
    code = getattr(function, "__code__", None)
    return f'"{code.co_filename}", line {code.co_firstlineno}' if code else type(function).__qualname__


def capture_model(
    model: nn.Module, *, pages: str = "N", page_tokens: int = 16, dtype: torch.dtype = torch.float32
) -> Captured:
    """A decoder's step over a ragged batch, as parts ``embed``, ``layers`` and ``head``.

    Arguments of the program: ``tokens``, ``positions``, ``row`` int32 [T]; ``page_rows`` int32 [B, P]; ``select``
    int32 [R], the tokens whose logits are wanted. States: ``keys.*`` and ``values.*`` [N, 16, kv_heads, head_dim].
    Result: ``logits`` float32 [R, vocab]; of a part that stands apart, ``hidden`` float32 [R, hidden]. Symbols: T
    tokens, B sequences, P pages a sequence, S positions that attention looks at (a multiple of 16 up to 16 P), R rows
    of logits or hidden vectors, N pages.

    Args:
        model: A family's module, as ``headrace.models.families.model.FamilyModel`` has it. Its
            parameters may be on the meta device: they are not read. Buffers must hold their values.
        pages: Symbol of the number of pages.
        page_tokens: Tokens a page.
        dtype: Of the states.

    Raises:
        Unsupported: It uses an operation that has no translation.
    """
    states = layer_states(model)

    def step(layers: Sequence[int]) -> tuple[ModelStep, list[Argument]]:
        return ModelStep(model, layers), step_arguments({n: states[n] for n in layers}, pages, page_tokens, dtype)

    rows = equal_layers(model, step, list(states))
    captured = _capture_layers(model, step, [n for row in rows or [] for n in row[:KEPT]], rows) if rows else None
    return captured or _capture_layers(model, step, list(states), None)  # type: ignore[return-value]


def _capture_layers(
    model: nn.Module, step: StepOf, kept: Sequence[int], rows: Sequence[Sequence[int]] | None
) -> Captured | None:
    """Capture some layers of a model.

    Args:
        model: The whole model.
        step: The step with some layers, and its arguments.
        kept: The layers.
        rows: Layers that do the same, of which ``kept`` has two each; None if it has all.

    Returns:
        The program; None if equal layers did not become one part, so that the others are not known.
    """
    with only(model, kept):
        function, arguments = step(kept)
        exported = export(function, arguments, model)
        segment_of, layers = segments(exported)
    prefix = f"{PREFIX}model."
    lowered = lower(exported, arguments, segment_of, prefix=prefix)
    captured = _hidden_apart(_assemble(exported, lowered, layers, ["logits", "hidden"], prefix))
    if rows is None:
        return captured
    parts = repeat_rows(captured.program.parts, rows)
    return None if parts is None else replace(captured, program=Program(parts))


def _hidden_apart(captured: Captured) -> Captured:
    """A model whose head gives logits alone; its hidden vectors, which few steps want, are a part of their own."""
    *before, head = captured.program.parts
    logits, hidden = (prune(replace(head.graph, outputs={x: head.graph.outputs[x]})) for x in ("logits", "hidden"))
    parts = (*before, replace(head, graph=logits))
    return replace(captured, program=Program(parts), apart=(Part("hidden", hidden, head.repeats),))


def _assemble(
    exported: ExportedProgram, lowered: Lowered, layers: Sequence[str], results: Sequence[str], prefix: str
) -> Captured:
    lowered.outputs[-1].update(zip(results, lowered.results, strict=True))
    parts, dims = roll(lowered, layers, results)
    used = {i.name for p in parts for i in p.graph.inputs.values()}
    constants = {k: v for k, v in _constants(exported, prefix).items() if k in used}
    return Captured(Program(tuple(parts)), constants, dims)


def _constants(exported: ExportedProgram, prefix: str) -> dict[str, NumpyArray]:
    """Buffers and constants that hold memory; parameters do not."""
    held = {**dict(exported.named_buffers()), **exported.constants}
    return {
        name.removeprefix(prefix): tensor.detach().cpu().numpy()
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor)
    }
