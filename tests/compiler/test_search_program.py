"""A program's genes, schedules made of them, what no program can beat; and the database."""

import dataclasses
import json
import math
import multiprocessing
import random

import ir_layers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_batches import MAXIMA, ROWS, layer_inputs
from native_graph import run_native

from headrace.compiler.codegen.layout import Layout, Piece, pack
from headrace.compiler.codegen.regions import regions
from headrace.compiler.ir import Part
from headrace.compiler.search import choices
from headrace.compiler.search.bound import Rates, Work, Workload, part_work, rates_of, stage_work, step_work
from headrace.compiler.search.choices import Interface, Program, blocks_of, gene_space, merged, schedule
from headrace.compiler.search.database import Entry, Key, TuningDatabase
from headrace.compiler.search.genes import DEFAULT

HIDDEN, FFN, KV, GROUP, HEAD = 128, 96, 2, 1, 64


def program(**changes):
    graph = ir_layers.layer(
        **{"hidden": HIDDEN, "kv_heads": KV, "group": GROUP, "head_dim": HEAD, "ffn": FFN, **changes}
    )
    return Program((Part("layer", graph),), MAXIMA, 16)


def test_the_default_genome_is_the_default_schedule():
    given_program = program()
    space = gene_space(given_program)
    assert len(space.blocks) >= 4
    a, b = (regions(p, blocks_of(given_program, p)) for p in (schedule(given_program),) * 2)
    assert [r.text for r in a] == [r.text for r in b]
    assert [r.block for r in a] == sorted(space.blocks, key=[r.block for r in a].index)


def test_any_genome_computes_the_same_bits():
    """Whole genomes at random, through the C compiler."""
    given_program = program()
    graph = given_program.parts[0].graph
    space = gene_space(given_program)
    inputs, sizes, segments = layer_inputs(graph, ROWS)

    def run(genome):
        chosen = choices._Chosen("layer", genome.as_dict())
        states = {k: v.copy() for k, v in inputs.items()}
        out = run_native(
            graph, states, sizes, maxima=MAXIMA, segments=segments, tile_for=chosen.tile, flags=("-O0", "-march=native")
        )
        return out["x"], [states[name] for name in graph.states]

    wanted, states = run(DEFAULT)
    rng = random.Random(0)
    for _ in range(3):
        genome = space.join(space.mutate(DEFAULT, rng, block, 4) for block in space.blocks)
        found, changed = run(genome)
        assert np.array_equal(found, wanted), space.describe(genome)
        for a, b in zip(states, changed, strict=True):
            assert np.array_equal(a, b), space.describe(genome)


def test_blocks_of_random_genomes_fit_together():
    given_program = program()
    space, interface = gene_space(given_program), Interface(given_program)
    default = regions(schedule(given_program), blocks_of(given_program, schedule(given_program)))
    rng = random.Random(0)
    for _ in range(20):
        genome = space.join(space.draw(rng, block) for block in space.blocks)
        planned = schedule(given_program, genome)
        assert interface.fits(planned)
        assert [r.block for r in regions(planned, blocks_of(given_program, planned))] == [r.block for r in default]


@given(st.data())
def test_merged_layouts_put_elements_in_the_same_places(data):
    pieces = data.draw(
        st.permutations([Piece("a", 8, 2), Piece("a", 2, 4), Piece("a", 1, 2), Piece("b", 3, 2), Piece("b", 1, 3)])
    )
    values = np.arange(16 * 6).reshape(16, 6)
    layout = Layout(tuple(pieces))
    assert np.array_equal(pack(values, ("a", "b"), layout), pack(values, ("a", "b"), merged(layout)))


# -- bounds

LOADS = [Workload("one", ((200, 1),)), Workload("many", ((200, 1), (7, 3), (0, 17))), Workload("long", ((0, 100),))]


@pytest.mark.parametrize("load", LOADS)
def test_work_is_counted_exactly(load):
    """Against the sums of a textbook."""
    graph = program().parts[0].graph
    work = part_work(graph, load)
    q, kv = KV * GROUP * HEAD, KV * HEAD
    products = HIDDEN * (q + 2 * kv) + q * HIDDEN + 3 * HIDDEN * FFN
    assert work.int8 == 2 * load.tokens * products
    attention = 2 * 2 * load.pairs * q
    assert work.bf16 + work.float32 == attention
    # Four bits a code, and two half floats for each 32 of them; norms; keys and values.
    weights = products / 2 + products / 32 * 4
    states = load.positions * 2 * kv * 2
    assert weights + states <= work.bytes <= weights + states + 3 * 4 * HIDDEN


def test_pairs_and_positions():
    load = Workload("", ((3, 2), (0, 1)))
    assert (load.tokens, load.pairs, load.positions) == (3, 4 + 5 + 1, 6)


@pytest.mark.parametrize("load", LOADS)
def test_a_schedule_never_does_less_than_its_program_must(load):
    given_program = program()
    space, rng = gene_space(given_program), random.Random(1)
    least = part_work(given_program.parts[0].graph, load)
    for _ in range(10):
        ((_, plan),) = schedule(given_program, space.join(space.draw(rng, b) for b in space.blocks))
        done = Work()
        for stage in plan.stages:
            done += stage_work(plan, stage, load)
        assert done.int8 >= least.int8
        assert done.bf16 + done.float32 >= least.bf16 + least.float32


def test_rates():
    rates = rates_of({"memory": 10.0, "int8": 100.0, "bf16": None, "float32": 20.0})
    assert rates == Rates(10e9, 100e9, 20e9, 20e9)
    assert Work(bytes=20e9, int8=100e9).seconds(rates) == 2.0
    assert Work(bytes=1e9, int8=100e9, float32=20e9).seconds(rates) == 2.0
    assert Work(bytes=20e9).seconds(dataclasses.replace(rates, cache=10**10)) == 1.0
    assert step_work(program().parts, LOADS[0]).seconds(rates_of({})) == 0.0
    assert rates_of({"float32": 5.0}).int8 == 5e9
    assert math.isinf(rates_of({}).memory)


# -- the database

KEY = Key("p" * 32, "cpu", "cc 12", 2)


def entry(**changes):
    fields = {
        "key": KEY,
        "genome": {"a": 1},
        "fingerprint": "f",
        "seconds": {"decode_b1": (2.0, 1.0)},
        "choices": ("a: 1 instead of 2",),
        "when": "2026-01-01T00:00:00+00:00",
        "record": "",
    }
    return Entry(**fields | changes)


def test_what_is_stored_is_found(tmp_path):
    database = TuningDatabase(tmp_path / "new")
    assert database.load(KEY) is None
    path = database.store(entry())
    assert database.load(KEY) == entry()
    database.store(entry(genome={"a": 3}))
    assert database.load(KEY).genome == {"a": 3}
    assert list(path.parent.iterdir()) == [path]
    for change in ({"program": "q"}, {"hardware": "x"}, {"compiler": "y"}, {"threads": 1}):
        assert database.load(dataclasses.replace(KEY, **change)) is None


@given(st.binary(max_size=200))
def test_a_corrupt_entry_is_left_out(tmp_path_factory, data):
    database = TuningDatabase(tmp_path_factory.mktemp("tuning"))
    database.path(KEY).write_bytes(data)
    assert database.load(KEY) is None


def test_a_cut_or_foreign_entry_is_left_out_with_a_warning(tmp_path, caplog):
    database = TuningDatabase(tmp_path)
    path = database.store(entry())
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        assert database.load(KEY) is None
    path.write_text(json.dumps(json.loads(whole) | {"version": 99}))
    assert database.load(KEY) is None
    other = dataclasses.replace(KEY, threads=7)
    database.path(other).write_bytes(whole)
    assert database.load(other) is None
    assert "using the defaults" in caplog.text


def _store_often(folder, number):
    database = TuningDatabase(folder)
    for _ in range(50):
        database.store(entry(genome={"a": number}))
        found = database.load(KEY)
        assert found is not None
        assert found.genome["a"] in (1, 2)


def test_two_processes_do_not_disturb_each_other(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_store_often, args=(tmp_path, n)) for n in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert TuningDatabase(tmp_path).load(KEY) is not None
