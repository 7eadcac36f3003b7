"""From the draft to graphs: what each part needs, under final names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import Builder, Graph, Input, Kind, Node, Op, Type, Write, selected_axes

Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Portion:
    """What one graph is made of: results by name, and writes."""

    outputs: Mapping[str, Array]
    writes: tuple[Write, ...]

    def roots(self) -> list[int]:
        """The nodes that it is there for."""
        indices = [i for w in self.writes for i in (*w.indices, w.value)]
        return [*indices, *(a.node for a in self.outputs.values())]


def needed(draft: Draft, roots: Iterable[int]) -> list[int]:
    """Nodes that the roots depend on, arguments first; alike for portions that are alike."""
    order: dict[int, None] = {}
    stack = list(roots)[::-1]
    while stack:
        waiting = [a for a in draft.nodes[stack[-1]].args if a not in order]
        if waiting:
            stack += reversed(waiting)
        else:
            order[stack.pop()] = None
    return list(order)


def axes_in(draft: Draft, portion: Portion) -> list[str]:
    """All axes of a portion in the order in which they appear."""
    found: dict[str, None] = {}
    for at in needed(draft, portion.roots()):
        node = draft.nodes[at]
        named = [str(node.attrs[1])] if node.op is Op.FOLD else []
        named += draft.inputs[str(node.attrs[0])].type.axes if node.op is Op.INPUT else []
        found |= dict.fromkeys(draft.find(a) for a in (*named, *draft.type(at).axes))
    for array in portion.outputs.values():
        found |= dict.fromkeys(draft.find(a) for a in array.dims if a)
    for write in portion.writes:
        found |= dict.fromkeys(draft.find(a) for a in draft.states[write.state].axes)
    return list(found)


def states_in(draft: Draft, portion: Portion) -> set[str]:
    """States that a portion reads or writes."""
    nodes = [draft.nodes[at] for at in needed(draft, portion.roots())]
    read = {draft.inputs[str(n.attrs[0])].state for n in nodes if n.op is Op.INPUT}
    return (read | {w.state for w in portion.writes}) - {""}


def build(draft: Draft, portion: Portion, axes: Mapping[str, str], rename: Rename) -> Graph:
    """The graph of a portion.

    Args:
        draft: Where it is.
        portion: What it gives.
        axes: Name of each axis, by representative.
        rename: Final name of an input, output or state.
    """
    builder = Builder()
    for found, name in axes.items():
        declared = draft.axes[found]
        builder.axis(name, declared.extent, declared.segments)

    def axis(a: str) -> str:
        return axes[draft.find(a)]

    def kind(t: Type) -> Type:
        return Type(t.dtype, tuple(sorted(axis(a) for a in t.axes)))

    new: dict[int, int] = {}
    for at in needed(draft, portion.roots()):
        node = draft.nodes[at]
        args = [new[a] for a in node.args]
        if node.op is Op.INPUT:
            new[at] = _input(builder, draft.inputs[str(node.attrs[0])], kind, rename, draft)
        elif node.op is Op.GATHER:
            new[at] = builder.gather(args[0], {axis(a): i for a, i in zip(selected_axes(node), args[1:], strict=True)})
        elif node.op is Op.SCATTER:
            index = {axis(a): i for a, i in zip(selected_axes(node), args[2:], strict=True)}
            new[at] = builder.scatter(args[0], args[1], index)
        else:
            new[at] = builder.node(node.op, _attrs(node, axis), tuple(args))
    outputs = {rename(name): (new[a.node], tuple(axis(d) for d in a.dims if d)) for name, a in portion.outputs.items()}
    writes = [_write(draft, builder, w, new, axis, kind, rename) for w in portion.writes]
    return builder.graph(outputs, writes)


def _attrs(node: Node, axis: Callable[[str], str]) -> tuple[str | int | float | tuple[str, ...], ...]:
    if node.op is Op.IOTA:
        return (axis(str(node.attrs[0])), node.attrs[1])
    if node.op is Op.FOLD:
        return (node.attrs[0], axis(str(node.attrs[1])), node.attrs[2])
    return node.attrs


def _input(builder: Builder, declared: Input, kind: Callable[[Type], Type], rename: Rename, draft: Draft) -> int:
    if declared.kind is Kind.STATE:
        state = kind(draft.states[declared.state])
        return builder.read(builder.state(rename(declared.state), state.dtype, state.axes), declared.version)
    full = kind(declared.type)
    return builder.input(rename(declared.name), full.dtype, full.axes, declared.kind)


def _write(
    draft: Draft, builder: Builder, write: Write, new: Mapping[int, int], axis: Callable[[str], str],
    kind: Callable[[Type], Type], rename: Rename,
) -> Write:  # fmt: skip
    state = kind(draft.states[write.state])
    name = builder.state(rename(write.state), state.dtype, state.axes)
    pairs = sorted((axis(a), new[i]) for a, i in zip(write.axes, write.indices, strict=True))
    return Write(name, tuple(a for a, _ in pairs), tuple(i for _, i in pairs), new[write.value])
