"""Graphs and programs as text, one line an operation."""

from __future__ import annotations

from headrace.compiler.ir import SCAN, Graph, Node, Op, Part, Type, in_order, selected_axes

_INFIX = {Op.ADD: "+", Op.MUL: "*", Op.LESS: "<"}


def show_part(part: Part) -> str:
    """One part: its name, how often it runs, its graph."""
    repeats = "" if part.repeats == ("",) else f" for * in {part.repeats[0]}..{part.repeats[-1]} ({len(part.repeats)})"
    return f"part {part.name}{repeats}\n{show(part.graph)}"


def show(graph: Graph) -> str:
    """A graph: axes, then nodes and writes in an order in which they can be computed, then results.

    Constants stand where they are used::

        %7 = fold sum hidden %6  f32[head_dim head token]
    """
    lines = [f"  axis {_axis(graph, name)}" for name in sorted(graph.axes)]
    number = {at: n for n, at in enumerate(i for i in in_order(graph) if i >= 0 and graph.nodes[i].op is not Op.CONST)}
    for at in in_order(graph):
        if at < 0:
            write = graph.writes[~at]
            index = _index(graph, number, write.axes, write.indices)
            lines.append(f"  write {write.state} [{index}] = {_name(graph, number, write.value)}")
        elif at in number:
            lines.append(f"  %{number[at]} = {_node(graph, number, graph.nodes[at])}  {show_type(graph.types[at])}")
    for name, (at, full) in graph.outputs.items():
        lines.append(f"  return {name} = {_name(graph, number, at)}  {show_type(full)}")
    return "\n".join(lines) + "\n"


def show_type(kind: Type) -> str:
    """``f32[hidden token]``."""
    return f"{kind.dtype}[{' '.join(kind.axes)}]"


def _axis(graph: Graph, name: str) -> str:
    axis = graph.axes[name]
    return f"{name}: {axis.extent}" + (f" over {axis.segments}" if axis.segments else "")


def _name(graph: Graph, number: dict[int, int], at: int) -> str:
    node = graph.nodes[at]
    return str(node.attrs[0]) if node.op is Op.CONST else f"%{number[at]}"


def _index(graph: Graph, number: dict[int, int], axes: tuple[str, ...], indices: tuple[int, ...]) -> str:
    return ", ".join(f"{a}: {_name(graph, number, i)}" for a, i in zip(axes, indices, strict=True))


def _node(graph: Graph, number: dict[int, int], node: Node) -> str:
    args = [_name(graph, number, a) for a in node.args]
    if node.op is Op.INPUT:
        return f"{graph.inputs[str(node.attrs[0])].kind} {node.attrs[0]}"
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    if node.op is Op.FOLD:
        reducer, axis, mode = node.attrs
        bound = f" below {args[1]}" if len(args) > 1 else ""
        return f"{'scan' if mode == SCAN else 'fold'} {reducer} {axis} {args[0]}{bound}"
    if node.op is Op.IOTA:
        axis, divisor = node.attrs
        return f"iota {axis}" + (f" / {divisor}" if divisor != 1 else "")
    if node.op is Op.GATHER:
        return f"gather {args[0]} [{_index(graph, number, selected_axes(node), node.args[1:])}]"
    if node.op is Op.SCATTER:
        return f"scatter {args[0]} [{_index(graph, number, selected_axes(node), node.args[2:])}] = {args[1]}"
    if node.op is Op.CAST:
        return f"cast {args[0]}"
    return f"{node.op} {', '.join(args)}"
