"""Equal layers in a row become one part that repeats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx
from torch.export import ExportedProgram

from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.errors import Unsupported
from headrace.compiler.capture.lowering import Lowered
from headrace.compiler.capture.names import Names
from headrace.compiler.capture.replay import Portion, axes_in, build, states_in
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import Graph, Kind, Part

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


def segments(exported: ExportedProgram) -> tuple[dict[fx.Node, int], list[str]]:
    """Cut a program where a layer begins, and after the last one.

    Returns:
        The segment of each operation, and the layer number of each segment: empty for what comes before and after.
    """
    nodes = [n for n in exported.graph.nodes if n.op == "call_function"]
    layers = [_layer_of(n) for n in nodes]
    numbered = [at for at, layer in enumerate(layers) if layer]
    if not numbered:
        return dict.fromkeys(nodes, 0), [""]
    segment_of, names, current = {}, [""], ""
    for at, (node, layer) in enumerate(zip(nodes, layers, strict=True)):
        if layer and layer != current:
            names.append(layer)
            current = layer
        elif at == numbered[-1] + 1:
            names.append("")
        segment_of[node] = len(names) - 1
    if numbered[-1] == len(nodes) - 1:
        names.append("")
    return segment_of, names


def _layer_of(node: fx.Node) -> str:
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        found = _LAYER.search(path)
        if found:
            return found[1]
    return ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the program.

    Attributes:
        layer: Number of the layer; empty if it is none.
        portion: What it computes.
        takes: Values of earlier segments, by their first names, in order of first use.
        axes: Every axis in it, in order of first use.
    """

    layer: str
    portion: Portion
    takes: Mapping[str, Array]
    axes: tuple[str, ...]

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of what it computes."""
        return tuple(self.portion.outputs)

    def star(self, name: str) -> str:
        """A weight's or state's name with a ``*`` for the layer's number."""
        if not self.layer:
            return name
        name = re.sub(rf"((?:^|\.)layers\.){self.layer}\.", r"\1*.", name)
        return re.sub(rf"\.{self.layer}$", ".*", name)


Link = tuple[int, ...]  # for each value taken, which value of the layer before it is; -1 if the same for all layers


@dataclass(slots=True)
class Rolling:
    """Finds out which layers are one part.

    Attributes:
        draft: Where the program is.
        segments: What it consists of.
        results: Names of what the program returns.
    """

    draft: Draft
    segments: list[Segment]
    results: Sequence[str]
    names: Names = field(init=False)
    takers: dict[str, set[int]] = field(default_factory=dict)  # of each value, the segments that take it
    called: dict[str, str] = field(default_factory=dict)  # final name of each value

    def __post_init__(self) -> None:
        for at, segment in enumerate(self.segments):
            for value in segment.takes:
                self.takers.setdefault(value, set()).add(at)
        for at in range(1, len(self.segments)):
            self._unify(at)
        count = Counter(self.draft.find(a) for s in self.segments for a in {self.draft.find(a) for a in s.axes})
        shared = [a for s in self.segments for a in s.axes if count[self.draft.find(a)] > 1]
        self.names = Names(self.draft)
        self.names.known = self.names.name(shared)

    def runs(self) -> list[list[int]]:
        """Segments, those together that are one part."""
        runs: list[list[int]] = []
        links: Link | None = None
        for at, segment in enumerate(self.segments):
            link = self._link(at)
            follows = bool(runs and segment.layer and link is not None and self._alike(runs[-1][0], at))
            if follows and (len(runs[-1]) == 1 or link == links):
                runs[-1].append(at)
                links = link
            else:
                runs.append([at])
        self._call(runs)
        return runs

    def _link(self, at: int) -> Link | None:
        """How a layer follows the one before; None if it cannot be a repetition."""
        if not at or not self.segments[at - 1].layer:
            return None
        before, after = self.segments[at - 1], self.segments[at]
        if len(before.takes) != len(after.takes) or any(self.takers[v] != {at} for v in before.gives):
            return None
        link = []
        for a, b in zip(before.takes, after.takes, strict=True):
            carried = b in before.gives and self.takers[a] == {at - 1}
            if not carried and a != b:
                return None
            link.append(before.gives.index(b) if carried else -1)
        return tuple(link)

    def _unify(self, at: int) -> None:
        """A value that is carried keeps its axes from layer to layer."""
        for index, (a, b) in zip(
            self._link(at) or (),
            zip(self.segments[at - 1].takes.values(), self.segments[at].takes.values(), strict=False),
            strict=False,
        ):
            if index >= 0 and len(a.dims) == len(b.dims):
                for x, y in zip(a.dims, b.dims, strict=True):
                    if x and y:
                        self.draft.unify(x, y)

    def _alike(self, a: int, b: int) -> bool:
        return self._plain(a) == self._plain(b)

    def _plain(self, at: int) -> Graph:
        """A segment's graph with its values numbered."""
        segment = self.segments[at]
        numbered = {v: f"in{i}" for i, v in enumerate(segment.takes)}
        numbered |= {v: f"out{i}" for i, v in enumerate(segment.gives)}
        return self.graph(at, numbered)

    def graph(self, at: int, called: Mapping[str, str]) -> Graph:
        """A segment's graph, values under these names."""
        segment = self.segments[at]
        return build(
            self.draft, segment.portion, self.scope(at), lambda name: called.get(name, "") or segment.star(name)
        )

    def scope(self, at: int) -> dict[str, str]:
        """Names of a segment's axes."""
        axes = [self.draft.find(a) for a in self.segments[at].axes]
        names = self.names.name(axes)
        return {a: names[a] for a in axes}

    def _call(self, runs: Sequence[Sequence[int]]) -> None:
        """Name values: what is carried from layer to layer is ``x`` all along, others are what PyTorch calls them."""
        self.called = {name: name for name in self.results}
        for run in runs:
            first, last = self.segments[run[0]], self.segments[run[-1]]
            for index, taken in zip(self._link(run[-1]) or (), first.takes, strict=False):
                if len(run) > 1 and index >= 0:
                    name = self.called.get(taken) or self._free("x")
                    self.called |= {taken: name, first.gives[index]: name, last.gives[index]: name}
        for run in runs:
            for value in (*self.segments[run[0]].gives, *self.segments[run[-1]].gives):
                self.called.setdefault(value, self._free(value))

    def _free(self, name: str) -> str:
        inputs = {n for n, declared in self.draft.inputs.items() if declared.kind is not Kind.VALUE}
        taken = {*self.called.values(), *inputs}
        number = 0
        while f"{name}{number or ''}" in taken:
            number += 1
        return f"{name}{number or ''}"


def roll(
    lowered: Lowered, layers: Sequence[str], results: Sequence[str]
) -> tuple[list[Part], dict[str, tuple[str, ...]]]:
    """Parts of the program, and the axes of the dimensions of weights, arguments, states and results.

    Args:
        lowered: The program.
        layers: Number of the layer of each segment; empty for what is none.
        results: Names of what the program returns.
    """
    draft = lowered.context.draft
    rolling = Rolling(draft, _segments(lowered, layers), results)
    parts: list[Part] = []
    dims: dict[str, tuple[str, ...]] = {}
    runs = rolling.runs()
    for run in runs:
        repeats = tuple(rolling.segments[i].layer for i in run)
        name = _part_name([p.name for p in parts], repeats[0], len(runs))
        parts.append(Part(name, rolling.graph(run[0], rolling.called), repeats if repeats[0] else ("",)))
        _note_dims(dims, lowered, rolling, run[0], results)
    return parts, dims


def repeat_rows(parts: Sequence[Part], rows: Sequence[Sequence[int]]) -> tuple[Part, ...] | None:
    """Parts that stand for whole rows of equal layers, where each has the first layers of one; None if one has not."""
    repeated = []
    left = list(rows)
    for part in parts:
        if part.repeats != ("",):
            row = left.pop(0)
            if part.repeats != tuple(str(n) for n in row[: len(part.repeats)]) or len(part.repeats) < min(len(row), 2):
                return None
            part = replace(part, repeats=tuple(str(n) for n in row))  # noqa: PLW2901
        repeated.append(part)
    return tuple(repeated)


def _segments(lowered: Lowered, layers: Sequence[str]) -> list[Segment]:
    draft, found, begin = lowered.context.draft, [], 0
    touched: set[str] = set()
    for layer, takes, gives, end in zip(layers, lowered.segments, lowered.outputs, lowered.writes, strict=True):
        portion = Portion(gives, tuple(lowered.context.writes[begin:end]))
        begin = end
        if not portion.roots():
            continue
        states = states_in(draft, portion)
        if states & touched:
            raise Unsupported("index_put", "", f"the states {sorted(states & touched)} are used by several layers")
        touched |= states
        found.append(Segment(layer, portion, takes, tuple(axes_in(draft, portion))))
    return found


def _part_name(taken: Sequence[str], layer: str, count: int) -> str:
    if not layer:
        return "main" if count == 1 else "head" if taken else "embed"
    return "layers" if "layers" not in taken else f"layers.{layer}"


def _note_dims(
    dims: dict[str, tuple[str, ...]], lowered: Lowered, rolling: Rolling, at: int, results: Sequence[str]
) -> None:
    segment, scope, draft = rolling.segments[at], rolling.scope(at), lowered.context.draft
    graph = rolling.graph(at, rolling.called)
    outputs = {name: a for name, a in segment.portion.outputs.items() if name in results}
    wanted = {*graph.inputs, *graph.states, *outputs}
    for name, array in (lowered.arrays | outputs).items():
        if segment.star(name) in wanted:
            axes = tuple(scope[draft.find(a)] if a else "" for a in array.dims)
            dims.setdefault(segment.star(name), axes)
