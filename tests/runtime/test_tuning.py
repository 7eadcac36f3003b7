"""Tuning a small model for real: what is found serves the next start, and no hostile candidate stops a search."""

import itertools
import json
import logging
import random

import numpy as np
import pytest
from engines import GREEDY, engine_for, record_logits, request, run

from headrace.cli.tune import as_object
from headrace.compiler import build
from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.native.build import Source
from headrace.compiler.search.bound import rates_of
from headrace.compiler.search.choices import gene_space
from headrace.compiler.search.database import Entry, TuningDatabase
from headrace.compiler.search.genes import DEFAULT
from headrace.compiler.search.genetic import Search
from headrace.compiler.search.record import InvalidRecord, read_record
from headrace.compiler.search.trials import Confirmation
from headrace.errors import InvalidInput
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.quant.recipes import recipe_named
from headrace.runtime import artifacts
from headrace.runtime.artifacts import open_model, open_prepared, program_key, tuned_genome, tuning_key
from headrace.runtime.tuning import measurer, pieces
from headrace.runtime.tuning import tune as tuning
from headrace.runtime.tuning.tune import TuneOptions, replay_search, tune

RECIPE = recipe_named("bf16")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tiny_folder import save_tiny

    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    checkpoint = open_checkpoint(folder)
    return checkpoint, load_spec(checkpoint, "tiny")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One cache for all tests, but a database for each."""
    global _CACHE
    if _CACHE is None:
        _CACHE = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HEADRACE_CACHE", str(_CACHE))
    for path in (_CACHE / "tuning").glob("*"):
        path.unlink()
    return _CACHE


_CACHE = None


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(measurer, "SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr(measurer, "CONFIRM_SECONDS", 0.02)
    monkeypatch.setattr(measurer, "LEAST_SECONDS", 1.0)
    monkeypatch.setattr(tuning, "Settings", lambda *a, **k: _settings(*a, **k))
    monkeypatch.setattr(build, "_source", _cheaply(build._source))


_Settings = tuning.Settings


def _settings(*args, **changes):
    return _Settings(*args, **{"population": 2, "patience": 1, **changes})


def _cheaply(make):
    def source(*args):
        found = make(*args)
        return Source(found.name, found.text, found.headers, ("-O0", *found.flags[1:]))

    return source


def search(model, tmp_path, seconds=60.0, **changes):
    checkpoint, spec = model
    options = TuneOptions(seconds=seconds, threads=1, record=tmp_path / "record.jsonl", **changes)
    return tune(checkpoint, spec, RECIPE, options, lambda: rates_of({"memory": 10.0, "float32": 50.0}))


def accept(monkeypatch):
    """Whatever is found is as good as confirmed, after one generation."""
    real = measurer.NativeMeasurer.confirm

    def confirm(self, genome):
        found = real(self, genome)
        return Confirmation(found.verdict, found.before, tuple(0.5 * x for x in found.before), 0.0)

    monkeypatch.setattr(measurer.NativeMeasurer, "confirm", confirm)
    monkeypatch.setattr(Search, "noise", lambda self, block, member=None: -1.0)
    monkeypatch.setattr(Search, "_gained", lambda self: False)


def test_a_search_is_kept_served_and_replayed(model, tmp_path, monkeypatch, caplog):
    checkpoint, spec = model
    accept(monkeypatch)
    found = search(model, tmp_path)
    assert found.genome.values, found.result
    assert {w.name for w in found.workloads} == {"decode_b1", "decode_b8", "decode_b32", "prefill_512"}
    assert all(w.limit > 0 and w.tuned < w.default for w in found.workloads)
    key = program_key(checkpoint, spec, RECIPE)
    assert tuned_genome(key, 1) == found.genome
    assert tuned_genome(key, 2) == DEFAULT
    tuned, _ = open_model(checkpoint, spec, RECIPE, 1)
    plain, _ = open_model(checkpoint, spec, RECIPE, 2)
    assert tuned.source.text != plain.source.text
    text = (tmp_path / "record.jsonl").read_text()
    first, lines = read_record(text)
    assert first["settings"]["population"] == 2
    assert {line["call"] for line in lines} == {"elapsed", "baseline", "evaluate", "confirm"}
    monkeypatch.setattr(measurer.NativeMeasurer, "__init__", None)  # nothing is measured
    again = replay_search(checkpoint, spec, RECIPE, tmp_path / "record.jsonl")
    assert (again.genome, again.choices, again.result) == (found.genome, found.choices, found.result)
    assert json.dumps(as_object("tiny", "bf16", found))
    with pytest.raises(InvalidRecord, match="another model, recipe or version"):
        replay_search(checkpoint, spec, recipe_named("float32"), tmp_path / "record.jsonl")
    with pytest.raises(InvalidRecord, match=r"nothing\.jsonl cannot be read: No such file or directory"):
        replay_search(checkpoint, spec, RECIPE, tmp_path / "nothing.jsonl")


def test_more_threads_than_processors_are_refused():
    with pytest.raises(InvalidInput) as caught:
        TuneOptions(threads=999)
    assert caught.value.field == "threads"


def store(model, genome, **changes):
    checkpoint, spec = model
    key = tuning_key(program_key(checkpoint, spec, RECIPE), 1)
    fields = {
        "key": key,
        "genome": dict(genome.values),
        "fingerprint": genome.fingerprint,
        "seconds": {},
        "choices": (),
        "when": "",
        "record": "",
    }
    return TuningDatabase().store(Entry(**fields | changes))


def changed_everywhere(model):
    checkpoint, spec = model
    prepared, _ = open_prepared(checkpoint, spec, RECIPE)
    space, rng = gene_space(prepared.program), random.Random(3)
    return space.join(space.mutate(DEFAULT, rng, block, 3) for block in space.blocks)


def test_the_tuned_program_computes_the_same_bits(model):
    """Through the engine, with a genome that changes every block."""

    def logits():
        engine = engine_for(model[0].path, executor="compiled", recipe=RECIPE.name, threads=1)
        noted = record_logits(engine)
        prompts = [np.random.default_rng(n).integers(3, 200, 5 + 9 * n) for n in range(3)]
        results = run(engine, *(request(n, prompt, GREEDY) for n, prompt in enumerate(prompts)))
        return noted, [results[n, 0].tokens for n in range(3)]

    plain, tokens = logits()
    store(model, changed_everywhere(model))
    tuned, again = logits()
    assert tokens == again
    assert_equal(plain, tuned)


def assert_equal(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert np.array_equal(a, b)


def test_a_database_that_is_damaged_or_foreign_is_left_out(model, caplog):
    checkpoint, spec = model
    plain, key = open_model(checkpoint, spec, RECIPE, 1)
    genome = changed_everywhere(model)
    for change in ({"fingerprint": "0"}, {"fingerprint": DEFAULT.fingerprint}):
        path = store(model, genome, **change)
        caplog.clear()
        assert open_model(checkpoint, spec, RECIPE, 1)[0].source.text == plain.source.text
        assert "using the defaults" in caplog.text
    path.write_bytes(b"{")
    assert open_model(checkpoint, spec, RECIPE, 1)[0].source.text == plain.source.text
    assert tuned_genome(key, 1) == DEFAULT


def test_a_tuned_program_that_cannot_be_written_gives_way_to_the_default(model, monkeypatch, caplog):
    checkpoint, spec = model
    plain, _ = open_model(checkpoint, spec, RECIPE, 1)
    genome = changed_everywhere(model)
    store(model, genome)
    real = artifacts.schedule_model

    def schedule(prepared, chosen=DEFAULT):
        if chosen.values:
            raise CannotEmit("no code for it")
        return real(prepared, chosen)

    monkeypatch.setattr(artifacts, "schedule_model", schedule)
    monkeypatch.setattr(artifacts, "read_kept", lambda path, kind, real=artifacts.read_kept: (
        None if genome.fingerprint in path.name else real(path, kind)))  # fmt: skip
    assert open_model(checkpoint, spec, RECIPE, 1)[0].source.text == plain.source.text
    assert "no code for it" in caplog.text


HOSTILE = {
    "loop": "for (volatile int i = 1; i;) {}",
    "crash": "*(volatile int *)8 = 1;",
    "wrong": "return;",
    "exit": "exit(0);",
    "broken": "this is no C",
}
SAID = {
    "loop": "did not",
    "crash": "SIGSEGV",
    "wrong": "something else",
    "exit": "ended the process",
    "broken": "compile",
}


def test_hostile_candidates_are_rejected_and_the_search_goes_on(model, tmp_path, monkeypatch):
    """Every new choice of one block is hostile, each in another way; those of the others are still found."""
    accept(monkeypatch)
    monkeypatch.setattr(tuning, "Settings", lambda *a, **k: _Settings(*a, **{"population": 6, "patience": 1, **k}))
    kinds = itertools.chain([""], itertools.cycle(HOSTILE.values()))  # the default is not hostile
    real = pieces.region_source

    def source(region):
        found = real(region)
        if region.block != "layers/3":
            return found
        mark = "void hr_stage_0(const hr_step *s, int64_t repeat, hr_cursor *at, char *scratch) { "
        assert mark in found.text
        text = "#include <stdlib.h>\n" + found.text.replace(mark, mark + next(kinds))
        return Source(found.name, text, found.headers, found.flags)

    monkeypatch.setattr(pieces, "region_source", source)
    found = search(model, tmp_path)
    space = gene_space(open_prepared(*model, RECIPE)[0].program)
    chosen = {space.genes[name].block for name, _ in found.genome.values}
    assert chosen
    assert "layers/3" not in chosen
    _, lines = read_record((tmp_path / "record.jsonl").read_text())
    verdicts = [
        trials["layers/3"]["verdict"]
        for line in lines
        if line["call"] == "evaluate"
        for trials in line["result"][1:]
        if "layers/3" in trials
    ]
    assert "ok" not in verdicts
    assert found.result.rejected == len([v for v in verdicts if not v.startswith("pruned")])
    for kind, words in SAID.items():
        assert any(words in verdict for verdict in verdicts), (kind, verdicts)


def test_a_default_that_differs_from_the_interpreter_is_no_start(model, tmp_path, monkeypatch):
    monkeypatch.setattr(measurer, "LARGEST_ERROR", -1.0)
    with pytest.raises(measurer.TuningError, match="interpreter"):
        search(model, tmp_path)


def test_no_time_at_all_keeps_the_default(model, tmp_path):
    found = search(model, tmp_path, seconds=0.1)
    assert found.genome == DEFAULT
    assert found.result.ended.startswith("the time is up before a choice was tried")
    assert not found.kept


def test_a_cache_that_cannot_be_written_is_said(model, tmp_path, monkeypatch, caplog):
    accept(monkeypatch)
    monkeypatch.setattr(TuningDatabase, "store", lambda self, entry: (_ for _ in ()).throw(OSError("full")))
    with caplog.at_level(logging.WARNING):
        found = search(model, tmp_path)
    assert found.genome.values
    assert not found.kept
    assert "HEADRACE_CACHE" in caplog.text


@pytest.mark.parametrize(("field", "value"), [("seconds", 0), ("seconds", float("nan")), ("purpose", "fun")])
def test_options_are_checked(field, value):
    with pytest.raises(InvalidInput):
        TuneOptions(**{field: value})
