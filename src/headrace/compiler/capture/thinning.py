"""Export a model of thirty equal layers with two of them.

Export costs most of a second a layer. So the whole model runs first without memory, at two sizes, and what it computes
is written down; of layers in a row that do the same, two are exported. Then the thinned model is written down as well:
it must do what the whole one did, less those layers. If anything differs, all layers are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from headrace.compiler.capture.arguments import EXAMPLES, Argument, example_sizes, without_memory

KEPT = 2  # layers of a row: one to see what it does, one to see what it takes from the one before
Event = tuple[Any, ...]


# The step with some layers, and what it takes.
StepOf = Callable[[Sequence[int]], tuple[nn.Module, list[Argument]]]


def equal_layers(model: nn.Module, step: StepOf, layers: Sequence[int]) -> list[list[int]] | None:
    """Rows of layers that do the same; None if leaving some out would not be safe, or not worth it."""
    found = layer_list(model)
    if found is None or [str(n) for n in layers] != list(found._modules):
        return None
    rows: list[list[int]] = []
    try:
        for attempt in range(len(EXAMPLES)):
            whole = record(*step(layers), model, attempt)
            now = rows_of_layers(whole)
            kept = [n for row in now for n in row[:KEPT]]
            if len(kept) == len(layers) or (rows and now != rows):
                return None
            rows = now
            with only(model, kept):
                if record(*step(kept), model, attempt) != thinned(whole, kept):
                    return None
    except Exception:
        # A model that cannot run like this is exported whole; if that fails too, its error is the better one.
        return None
    return rows


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the operations of one layer do, or those before and after all layers.

    Attributes:
        layer: Its number; empty if it is none.
        events: Each operation with its arguments; what comes from other stretches is numbered.
        sources: Where those numbers come from.
    """

    layer: str
    events: tuple[Event, ...]
    sources: tuple[Event, ...]


def layer_list(model: nn.Module) -> nn.ModuleList | None:
    """The list of the model's layers, if there is exactly one."""
    found = [m for name, m in model.named_modules() if name.split(".")[-1] == "layers" and isinstance(m, nn.ModuleList)]
    return found[0] if len(found) == 1 else None


def rows_of_layers(stretches: Sequence[Stretch]) -> list[list[int]]:
    """Layers in a row that do the same with the same sources; the first of a row may have others."""
    rows: list[list[Stretch]] = []
    for stretch in stretches:
        row = rows[-1] if rows else []
        same = bool(row) and stretch.layer and row[0].events == stretch.events
        if same and (len(row) == 1 or row[-1].sources == stretch.sources):
            row.append(stretch)
        else:
            rows.append([stretch])
    return [[int(s.layer) for s in row] for row in rows if row[0].layer]


@contextmanager
def only(model: nn.Module, kept: Sequence[int]) -> Iterator[None]:
    """Leave out all other layers; those that stay keep their numbers."""
    layers = layer_list(model) or nn.ModuleList()
    every = dict(layers._modules)
    layers._modules = {name: module for name, module in every.items() if int(name) in kept}
    try:
        yield
    finally:
        layers._modules = every


def thinned(stretches: Sequence[Stretch], kept: Sequence[int]) -> list[Stretch]:
    """What is left without the other layers."""
    return [s for s in stretches if not s.layer or int(s.layer) in kept]


def record(step: nn.Module, arguments: Sequence[Argument], model: nn.Module, attempt: int) -> list[Stretch]:
    """Write down what a step does.

    Args:
        step: Takes the arguments' tensors.
        arguments: What it takes.
        model: Its weights and layers.
        attempt: Which of two sets of sizes to use.
    """
    layers = layer_list(model) or nn.ModuleList()
    with torch.no_grad(), without_memory(model) as mode, mode, ExitStack() as hooks:
        sizes = example_sizes(arguments, attempt)
        shapes = [[sizes.get(x.extent, x.extent) for x in a.axes] for a in arguments]
        tensors = [torch.empty(s, dtype=a.dtype) for a, s in zip(arguments, shapes, strict=True)]  # type: ignore[arg-type]
        recorder = _Recorder()
        recorder.name({a.name: t for a, t in zip(arguments, tensors, strict=True)})
        recorder.name({**dict(model.named_parameters()), **dict(model.named_buffers())})
        for number, layer in layers._modules.items():
            if layer is not None:
                hooks.enter_context(_hooked(layer, number, recorder))
        with recorder:
            result = step(*tensors)
        recorder.event("result", result)
    return recorder.stretches()


@contextmanager
def _hooked(layer: nn.Module, number: str, recorder: _Recorder) -> Iterator[None]:
    """Let the recorder know when a layer begins and when it ends."""
    handles = [
        layer.register_forward_pre_hook(lambda *_: recorder.begin(number)),
        layer.register_forward_hook(lambda *_: recorder.begin("")),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(slots=True)
class _Open:
    layer: str
    events: list[Event] = field(default_factory=list)
    sources: dict[Event, int] = field(default_factory=dict)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts = [_Open("")]
        self.names: dict[int, str] = {}
        self.made: dict[int, tuple[int, int, int]] = {}  # of a tensor: stretch, event, which of its results
        self.alive: list[Any] = []  # an id is a name only as long as its tensor lives

    def name(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.names |= {id(t): name for name, t in tensors.items()}
        self.alive += tensors.values()

    def begin(self, layer: str) -> None:
        self.parts.append(_Open(layer))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.event(str(func), (args, kwargs or {}))
        for n, tensor in enumerate(tree_flatten(result)[0]):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self.names:
                self.made[id(tensor)] = (len(self.parts) - 1, len(self.parts[-1].events) - 1, n)
                self.alive.append(tensor)
        return result

    def event(self, operation: str, arguments: Any) -> None:
        leaves, shape = tree_flatten(arguments)
        told = tuple(self._tell(x) if isinstance(x, torch.Tensor) else (type(x).__name__, repr(x)) for x in leaves)
        self.parts[-1].events.append((operation, str(shape), *told))

    def _tell(self, tensor: torch.Tensor) -> Event:
        part = self.parts[-1]
        if id(tensor) in self.names:
            return "input", _starred(self.names[id(tensor)], part.layer)
        stretch, *place = self.made[id(tensor)]
        if stretch == len(self.parts) - 1:
            return "own", *place
        # What comes from before the layers is counted from the front, what comes from a layer from here.
        counted = stretch if not self.parts[stretch].layer and stretch == 0 else stretch - len(self.parts)
        return "taken", part.sources.setdefault((counted, *place), len(part.sources))

    def stretches(self) -> list[Stretch]:
        made = [Stretch(p.layer, tuple(p.events), tuple(p.sources)) for p in self.parts]
        return [s for s in made if s.events]


def _starred(name: str, layer: str) -> str:
    parts = name.split(".")
    return ".".join("*" if layer and p == layer else p for p in parts)
