"""The accounts of a full arena add up, and schemes are what their sources say."""

import itertools
import json

import pytest
from typer.testing import CliRunner

from headrace.bench.memory import (
    Simulation,
    UnreservedMemory,
    WatchedMemory,
    measure_concurrency,
    measure_full_arena,
    requests,
)
from headrace.bench.memory_schemes import ITEM_BYTES, MODELS, Model, one_size, ours, split, windows_kept
from headrace.bench.memory_use import bytes_in_use
from headrace.cli.app import app
from headrace.models.configs.windows import attention_groups
from headrace.models.spec import StateGroup, StatePart, attention_group

WINDOWS = attention_groups((True, True, True, False), 32, 1, 8)
STATES = (attention_group("full", (0,), 1, 8), StateGroup("recurrent", (1, 2), (StatePart("ssm", (600,)),)))
TINY = [Model("windows", WINDOWS, 1e5, 400_000, 200), Model("states", STATES, 1e5, 800_000, 200)]


def plain_bytes(simulation):
    """What sequences read again, one after the other."""
    found = 0
    for sequence in simulation.scheduler.running:
        for group in simulation.model.groups:
            seen = min(sequence.computed, group.window - 1) if group.window else sequence.computed
            found += (seen if group.by_token else bool(sequence.computed)) * group.item_bytes(ITEM_BYTES)
    return found


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("model", TINY, ids=lambda model: model.name)
def test_shares_add_up_to_the_arena(model, prefix_cache):
    simulation = Simulation(model, ours(WatchedMemory, model.groups, model.arena_bytes, prefix_cache=prefix_cache))
    for _ in range(15):
        simulation.run(0, 10)
        simulation.scheduler.check()
        use = bytes_in_use(simulation.memory, simulation.scheduler.running)
        assert sum(use.values()) == pytest.approx(1)
        assert all(share >= 0 for share in use.values())
        useful = use["useful"] * simulation.memory.arena.nbytes
        # Shared pages count once.
        assert useful <= plain_bytes(simulation) + 1
        assert prefix_cache or useful == pytest.approx(plain_bytes(simulation))


def test_gemma_s_pages_of_one_size():
    """vLLM's example, case 3, with Gemma 3 4B's 29 + 5 layers: six groups of windows, the last with one of padding."""
    memory = one_size(UnreservedMemory, MODELS["gemma-3-4b"].groups, 10**9, prefix_cache=False)
    assert [group.window for group in memory.groups] == [0] + [1024] * 6
    assert {pool.form.page_bytes for pool in memory.pools} == {5 * 16 * 2 * 4 * 256 * 2}
    whole = one_size(UnreservedMemory, windows_kept(MODELS["gemma-3-4b"].groups), 10**9, prefix_cache=False)
    assert [group.window for group in whole.groups] == [0] * 7


def test_granite_s_pages_of_one_size():
    """Case 4: a page of attention over four layers has the tokens of a state of four layers."""
    memory = one_size(UnreservedMemory, MODELS["granite-4-h-small"].groups, 10**10, prefix_cache=False)
    state = 4 * (128 * 64 * 128 * 4 + 3 * (8192 + 256) * 2)
    token = 4 * 2 * 8 * 128 * 2
    assert len(memory.groups) == 1 + 9
    assert memory.page_tokens == -(-state // (16 * token)) * 16
    two = one_size(UnreservedMemory, MODELS["granite-4-h-small"].groups, 10**10, prefix_cache=False, states=2)
    assert len(two.groups) == 1 + 18


def test_a_split_bounds_each_kind():
    memory = split(UnreservedMemory, STATES, 100_000, 0.25, prefix_cache=False)
    sizes = [pool.capacity * pool.form.page_bytes for pool in memory.pools]
    assert 24_000 < sizes[0] <= 25_000
    assert 70_000 < sizes[1] <= 75_000


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_requests_are_at_most_a_hundredth_of_the_arena(model):
    for tokens, output in itertools.islice(requests(model.longest, 3), 300):
        assert len(tokens) + output <= model.longest
    state = 0
    for group in model.groups:
        most = min(model.longest, group.window + 1024) if group.window else model.longest
        state += (most if group.by_token else 2) * group.item_bytes(ITEM_BYTES)
    assert state <= 0.01 * model.arena_bytes


def test_results():
    model = TINY[0]
    arena = measure_full_arena(model, 100, 60)
    assert arena.moments > 0
    assert 0.5 < arena.least <= arena.mean < 1
    assert sum(arena.lost.values()) == pytest.approx(1 - arena.mean)
    rows = {row.scheme: row for row in measure_concurrency(model, 100, 60, lambda what: None)}
    assert rows["ours"].running > rows["one size, windows kept"].running
    assert sum(name.startswith("split") for name in rows) == 5


def test_the_verb(tmp_path):
    target = tmp_path / "found.json"
    args = ["bench", "memory", "--only", "granite-4-h-small", "--warmup", "0", "--steps", "3", "--json", str(target)]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "requests at once" in result.output
    found = json.loads(target.read_text())
    assert found["full_arena"][0]["model"] == "granite-4-h-small"
    assert {row["scheme"] for row in found["concurrency"]} >= {"ours", "one size", "one size, two states"}


def test_an_unknown_model_is_refused():
    result = CliRunner().invoke(app, ["bench", "memory", "--only", "nobody"])
    assert result.exit_code == 1
    assert "gemma-3-4b" in result.output
