"""``Rule`` and ``saturate``: apply rules until nothing new is found or a limit is reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from headrace.compiler.egraph.graph import EGraph
from headrace.compiler.egraph.node import ClassId
from headrace.compiler.egraph.pattern import Match, Matcher, Pattern, PatternError, Row, build, names

Search = Callable[[EGraph], Iterable[Match]]
Witness = Callable[[EGraph, Match], bool]
Construct = Callable[[EGraph, Match], ClassId | None]
Equality = Literal["bit", "real"]
Stop = Literal["saturated", "rounds", "nodes", "seconds"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What stands on the left equals what stands on the right, where all witnesses agree.

    Attributes:
        name: Unique; unions and nodes that come from the rule carry it.
        theme: What it is about, such as ``contraction``.
        equality: ``bit`` if both sides give the same bits, ``real`` if the same real numbers.
        lhs: A pattern, or a function that finds matches by itself (in a rebuilt graph, in an order of its own that no
            run changes), for what no single pattern says: "two contractions share an operand".
        rhs: A pattern, or a function that adds what equals the match's root and returns its class, or None if there
            is nothing. It is called once for each match of a pattern, while other rules' unions of the round are not
            yet rebuilt. It may call ``union`` itself for classes other than the root.
        when: Witnesses; asked while the graph is rebuilt, and again every round until they agree.
        doc: Why it is true, and what it is good for.

    Raises:
        PatternError: The right side has a name that the left side does not bind.
    """

    name: str
    theme: str
    equality: Equality
    lhs: Pattern | Search
    rhs: Pattern | Construct
    when: tuple[Witness, ...] = ()
    doc: str = ""
    matcher: Matcher | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matcher", None if callable(self.lhs) else Matcher.of(self.lhs))
        if not callable(self.lhs) and not callable(self.rhs):
            for left, right in zip(names(self.lhs), names(self.rhs), strict=True):
                if right - left:
                    raise PatternError(f"rule {self.name!r}: {min(right - left)!r} stands on the right side only")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    Attributes:
        rounds: Of search, application and rebuild.
        nodes: E-nodes of the graph, soft: checked after each application.
        seconds: A safety net. A run that ends by it need not end in the same graph another time.
        matches: More matches than this, or than the graph has nodes, and a rule is explosive: it sits out some rounds
            (the back-off of egg's scheduler; both numbers double each time).
        ban: Rounds that it sits out the first time.
    """

    rounds: int = 30
    nodes: int = 50_000
    seconds: float = 30.0
    matches: int = 1_000
    ban: int = 5


@dataclass(slots=True)
class RuleStats:
    """What one rule did.

    Attributes:
        matches: Found with the witnesses' consent, those of earlier rounds not counted again.
        unions: Made, by it directly.
        bans: Times that it sat out for being explosive.
        seconds: Search, witnesses and application.
    """

    rule: Rule
    matches: int = 0
    unions: int = 0
    bans: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SaturationReport:
    """How a saturation went.

    Attributes:
        stop: Why it ended.
        rounds: Done.
        nodes: E-nodes at the end.
        classes: E-classes at the end.
        seconds: In all.
        rules: In the order given.
    """

    stop: Stop
    rounds: int
    nodes: int
    classes: int
    seconds: float
    rules: tuple[RuleStats, ...]

    def describe(self) -> str:
        """For people: a line in all, then a line for each rule that found anything."""
        lines = [
            f"{self.stop} after {self.rounds} rounds, {self.seconds:.3f} s: {self.nodes} nodes, {self.classes} classes"
        ]
        lines += [
            f"  {each.rule.name}: {each.matches} matches, {each.unions} unions, {each.bans} bans, {each.seconds:.3f} s"
            for each in self.rules
            if each.matches or each.bans
        ]
        return "\n".join(lines)


def saturate(graph: EGraph, rules: Sequence[Rule], limits: Limits | None = None) -> SaturationReport:
    """Apply rules round by round. The graph is rebuilt before and after.

    Args:
        graph: Is grown.
        rules: In the order in which they are to be applied within a round.
        limits: The default ones if None.

    Returns:
        What was done; ``stop`` is ``saturated`` only if no rule is left with anything to say.

    Raises:
        PatternError: Two rules have one name.
        Conflict: A rule (named) called equal what an analysis knows is not.
        EGraphError: The graph's own ``max_nodes`` was reached, or an analysis does not settle.
    """
    seen = {rule.name for rule in rules}
    if len(seen) < len(rules):
        raise PatternError("two rules have one name: provenance would not tell them apart")
    return _Run(graph, rules, limits or Limits()).run()


class _Runner:
    """One rule in one saturation: what it did, and which rows it need not look at again.

    Attributes:
        done: Rows that were applied.
        refused: Rows that a witness or the right side had nothing to say to; asked again each round.
        since: The graph's clock at the last search that was complete.
        free_at: The round from which it may search.
    """

    def __init__(self, rule: Rule) -> None:
        self.stats = RuleStats(rule)
        self.done: set[Row] = set()
        self.refused: dict[Row, None] = {}
        self.since = 0
        self.free_at = 0

    def search(self, graph: EGraph, limit: int) -> list[tuple[Row, Match]] | None:
        """New matches that all witnesses agree to; None if there are more than ``limit`` to look at."""
        rule = self.stats.rule
        found = self._matches(graph, limit) if rule.matcher is None else self._rows(graph, rule.matcher, limit)
        if found is None or not rule.when:
            return found
        agreed: list[tuple[Row, Match]] = []
        for row, match in found:
            if all(witness(graph, match) for witness in rule.when):
                agreed.append((row, match))
            else:
                self.refused[row] = None
        return agreed

    def _matches(self, graph: EGraph, limit: int) -> list[tuple[Row, Match]] | None:
        assert callable(self.stats.rule.lhs)
        some = list(islice(self.stats.rule.lhs(graph), limit + 1))
        return None if len(some) > limit else [((), match) for match in some]

    def _rows(self, graph: EGraph, matcher: Matcher, limit: int) -> list[tuple[Row, Match]] | None:
        new, complete = matcher.rows(graph, limit, self.since)
        if not complete:
            return None
        self.since = graph.clock
        # A row with an old name of a class came back among the new ones, under its present name.
        rows = [row for row in self.refused if matcher.is_current(graph, row)]
        self.refused.clear()
        rows += [row for row in new if row not in self.done]
        return [(row, matcher.match(row)) for row in dict.fromkeys(rows)]

    def apply(self, graph: EGraph, row: Row, match: Match) -> None:
        """Add the right side and call it equal to the root."""
        rhs = self.stats.rule.rhs
        result = rhs(graph, match) if callable(rhs) else build(graph, rhs, match)
        if result is None:
            self.refused[row] = None
        else:
            graph.union(match.root, result)
            self.done.add(row)


class _Run:
    def __init__(self, graph: EGraph, rules: Sequence[Rule], limits: Limits) -> None:
        self.graph = graph
        self.limits = limits
        self.runners = [_Runner(rule) for rule in rules]
        self.started = time.perf_counter()
        self.rounds = 0

    def run(self) -> SaturationReport:
        self.graph.rebuild()
        stop: Stop | None = None
        while stop is None:
            stop = self._round() if self.rounds < self.limits.rounds else "rounds"
        return SaturationReport(
            stop,
            self.rounds,
            len(self.graph),
            len(self.graph.classes()),
            time.perf_counter() - self.started,
            tuple(runner.stats for runner in self.runners),
        )

    def _round(self) -> Stop | None:
        """Search with every rule, then apply, then rebuild: the order of the rules does not decide what is found."""
        before = (len(self.graph), len(self.graph.unions))
        work: list[tuple[_Runner, list[tuple[Row, Match]]]] = []
        for runner in self.runners:
            if self._late():
                return "seconds"
            work.append((runner, self._search(runner)))
        stop = self._apply(work)
        self.graph.rebuild()
        self.rounds += 1
        if stop is None and before == (len(self.graph), len(self.graph.unions)):
            waiting = [runner for runner in self.runners if runner.free_at >= self.rounds]
            if not waiting:
                return "saturated"
            # Nothing would happen before the first of them returns.
            ahead = min(runner.free_at for runner in waiting) - self.rounds
            for runner in waiting:
                runner.free_at -= ahead
        return stop

    def _search(self, runner: _Runner) -> list[tuple[Row, Match]]:
        stats = runner.stats
        if runner.free_at > self.rounds:
            return []
        start = time.perf_counter()
        limit = max(self.limits.matches, len(self.graph)) << stats.bans
        found = runner.search(self.graph, limit)
        stats.seconds += time.perf_counter() - start
        if found is not None:
            return found
        runner.free_at = self.rounds + 1 + (self.limits.ban << stats.bans)
        stats.bans += 1
        return []

    def _apply(self, work: list[tuple[_Runner, list[tuple[Row, Match]]]]) -> Stop | None:
        graph = self.graph
        outer = graph.because
        try:
            for runner, found in work:
                stats, start, unions = runner.stats, time.perf_counter(), len(graph.unions)
                graph.because = stats.rule.name
                for count, (row, match) in enumerate(found):
                    if len(graph) > self.limits.nodes:
                        return "nodes"
                    if count % 64 == 63 and self._late():
                        return "seconds"
                    runner.apply(graph, row, match)
                    stats.matches += 1
                stats.unions += len(graph.unions) - unions
                stats.seconds += time.perf_counter() - start
        finally:
            graph.because = outer
        return "nodes" if len(graph) > self.limits.nodes else None

    def _late(self) -> bool:
        return time.perf_counter() - self.started > self.limits.seconds
