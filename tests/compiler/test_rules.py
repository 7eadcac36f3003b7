"""Every rewrite rule against the interpreter, on random graphs around its left side."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from rule_cases import CASES, HELPERS, Maker

from headrace.compiler.egraph import Limits, cheapest, random_choice, saturate
from headrace.compiler.interpret import interpret
from headrace.compiler.rules import MERGING, ProgramGraph, read

ALL = dict.fromkeys(rule for phase in MERGING for rule in phase)
RULES = {rule.name: rule for rule in ALL}
QUICK, FULL = 60, 1000
LEAVES = ("input", "const", "iota")
LIMITS = Limits(rounds=6, nodes=4000, matches=10_000)


def run(graph, maker, *, exact):
    # Inputs keep their types but for what the interpreter computes in float64.
    inputs = {n: v.astype(np.float64) if exact and v.dtype.kind == "f" else v for n, v in maker.values.items()}
    return interpret(graph, inputs, maker.sizes, exact=exact)["y"]


def programs(found, name, seed):
    """The program that uses the rule most, and some others."""
    space = found.space()
    origin = {node: found.origin(node) for nodes in space.options.values() for node in nodes}
    yield cheapest(space, lambda _, n: 0.0 if n.head.op in LEAVES else 1.0 if origin[n] == name else 1000.0)
    rng = Random(seed)
    for _ in range(2):
        yield random_choice(space, rng)


def close(got, expected, tolerance):
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    return np.allclose(got, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def check(name, seed):
    rule = RULES[name]
    maker = Maker(seed)
    graph = maker.graph(CASES[name](maker))
    found = ProgramGraph(graph, maker.assumptions)
    report = saturate(found, [*(RULES[helper] for helper in HELPERS[name]), rule], LIMITS)
    fired = next(stats.matches for stats in report.rules if stats.rule is rule)
    exact, rough = run(graph, maker, exact=True), run(graph, maker, exact=False)
    for choice in programs(found, name, seed):
        other = read(found, choice)
        assert other.outputs["y"][1] == graph.outputs["y"][1]
        assert close(run(other, maker, exact=True), exact, 1e-9), seed
        got = run(other, maker, exact=False)
        bit = rule.equality == "bit" and all(RULES[h].equality == "bit" for h in HELPERS[name])
        assert np.array_equal(got, rough, equal_nan=True) if bit else close(got, rough, 1e-4), seed
    return fired > 0


def test_every_rule_has_a_case():
    assert sorted(CASES) == sorted(RULES)


def test_rules_are_documented():
    for rule in ALL:
        assert len(rule.doc) > 10, rule.name
        assert rule.equality in ("bit", "real")


@pytest.mark.parametrize("name", sorted(CASES))
def test_rule(name):
    assert not [seed for seed in range(QUICK) if not check(name, seed)]


@pytest.mark.bars
@pytest.mark.parametrize("name", sorted(CASES))
def test_rule_at_length(name):
    assert not [seed for seed in range(QUICK, QUICK + FULL) if not check(name, seed)]
