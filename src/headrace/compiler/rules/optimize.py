"""``optimize``: a graph in, a cheaper equal graph out; ``explore`` gives all that were found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.compiler.egraph import Choice, Limits, Rule, SaturationReport, Space, cheapest, saturate
from headrace.compiler.ir import Graph
from headrace.compiler.rules import algebra, attention, contraction, index, merging, quantized, softmax, views
from headrace.compiler.rules.climb import climb
from headrace.compiler.rules.cost import CostModel
from headrace.compiler.rules.facts import RUNTIME
from headrace.compiler.rules.program import Assumptions, ProgramGraph, read

REARRANGE: tuple[Rule, ...] = (*algebra.RULES, *index.RULES, *views.RULES)
REDUCE: tuple[Rule, ...] = (*REARRANGE, *contraction.RULES, *quantized.RULES, *softmax.RULES)
EVERYTHING: tuple[Rule, ...] = (*REDUCE, *attention.RULES)
PHASES: tuple[tuple[Rule, ...], ...] = (REDUCE, EVERYTHING)
"""What is cut into blocks should be in its best form before."""

MERGING: tuple[tuple[Rule, ...], ...] = (*PHASES, merging.RULES)
"""With contractions merged at the end, for a search to choose; were selections pushed on through what is merged, the
graph would explode."""

LIMITS = Limits(rounds=40, nodes=60_000, seconds=60.0, matches=1_000_000)


@dataclass(frozen=True, slots=True)
class Explored:
    """Programs equal to a graph.

    Attributes:
        graph: All that was found.
        space: To choose from.
        reports: How each phase went.
    """

    graph: ProgramGraph
    space: Space
    reports: tuple[SaturationReport, ...]

    def cheapest(self, sizes: Mapping[str, int] | None = None) -> Choice:
        """The program that costs least by counting, for some values of the symbols."""
        cost = CostModel(self.graph, sizes)
        at_run_time = lambda eclass: self.graph.facts(eclass).level == RUNTIME  # noqa: E731
        return climb(self.graph, cheapest(self.space, cost), cost, at_run_time)

    def read(self, choice: Choice) -> Graph:
        """A program as a graph."""
        return read(self.graph, choice)

    def reasons(self, choice: Choice) -> Counter[str]:
        """Which rules made the nodes of a program; ``given`` counts those that were there."""
        return Counter(self.graph.origin(node) for node in choice.values())


def explore(
    graph: Graph,
    assumptions: Assumptions | None = None,
    phases: Sequence[Sequence[Rule]] = PHASES,
    limits: Limits = LIMITS,
) -> Explored:
    """All programs that rules find equal to a graph.

    Args:
        graph: What to compute.
        assumptions: What is known of it besides.
        phases: Rules, saturated one tuple after the other.
        limits: Of each phase.
    """
    found = ProgramGraph(graph, assumptions)
    reports = tuple(saturate(found, rules, limits) for rules in phases)
    return Explored(found, found.space(), reports)


def optimize(
    graph: Graph, assumptions: Assumptions | None = None, sizes: Mapping[str, int] | None = None
) -> tuple[Graph, Counter[str]]:
    """The cheapest program that rules find equal to a graph, and which rules made it. Deterministic.

    Args:
        graph: What to compute.
        assumptions: What is known of it besides.
        sizes: Values of symbols to count with.
    """
    explored = explore(graph, assumptions)
    choice = explored.cheapest(sizes)
    return explored.read(choice), explored.reasons(choice)
