"""Work that depends on weights alone is done once, when a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.compiler.ir import Builder, Graph, Kind, Op, Write
from headrace.compiler.schedule.facts import Facts


@dataclass(frozen=True, slots=True)
class Folded:
    """A graph whose constant parts became weights of their own.

    Attributes:
        graph: Without them.
        made: Name of each new weight to the graph that computes it, as its only output, ``value``.
    """

    graph: Graph
    made: Mapping[str, Graph]


def fold_constants(graph: Graph) -> Folded:
    """Take constant parts out of a graph: rearranged weights, and factors of contractions that are to be computed.

    Scales and zero points of weights that are stored in few bits stay apart: applying them would only make the weights
    longer.
    """
    facts = Facts(graph)
    chosen = _chosen(facts)
    builder = Builder(dict(graph.axes), dict(graph.inputs), dict(graph.states))
    new: dict[int, int] = {}
    made: dict[str, Graph] = {}
    for at, node in enumerate(graph.nodes):
        if at in chosen:
            part = _part(facts, at)
            name = _name(part, made)
            made[name] = part
            kind = graph.types[at]
            new[at] = builder.input(name, kind.dtype, kind.axes, Kind.WEIGHT)
        else:
            new[at] = builder.node(node.op, node.attrs, tuple(new[a] for a in node.args))
    outputs = {name: (new[node], full.axes) for name, (node, full) in graph.outputs.items()}
    writes = [Write(w.state, w.axes, tuple(new[i] for i in w.indices), new[w.value]) for w in graph.writes]
    return Folded(builder.graph(outputs, writes), made)


def _chosen(facts: Facts) -> set[int]:
    wanted = {
        at
        for at, node in enumerate(facts.graph.nodes)
        if node.op is Op.GATHER and facts.constant[at] and not _literal(facts, at)
    }
    for found in facts.contractions.values():
        right = facts.behind(found.right)
        if facts.constant[right] and facts.node(right).op not in (Op.INPUT, Op.GATHER):
            wanted.add(right)
    inner = {x for at in wanted for x in facts.cone(at, frozenset()) if x != at}
    return wanted - inner | {at for at in wanted if _used_at_run_time(facts, at)}


def _literal(facts: Facts, at: int) -> bool:
    """Whether a value depends on no weight at all."""
    return all(facts.node(x).op is not Op.INPUT for x in facts.cone(at, frozenset()))


def _used_at_run_time(facts: Facts, at: int) -> bool:
    return any(not facts.constant[c] for c in facts.consumers[at])


def _part(facts: Facts, at: int) -> Graph:
    graph = facts.graph
    builder = Builder(dict(graph.axes), dict(graph.inputs), dict(graph.states))
    new: dict[int, int] = {}
    for x in facts.cone(at, frozenset()):
        node = graph.nodes[x]
        new[x] = builder.node(node.op, node.attrs, tuple(new[a] for a in node.args))
    return builder.graph({"value": (new[at], graph.types[at].axes)})


def _name(part: Graph, taken: Mapping[str, Graph]) -> str:
    """The weights that it is made of, and a number."""
    base = "+".join(sorted(part.inputs))
    names = (f"{base}#{n}" for n in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)
