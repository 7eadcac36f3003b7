import json

import pytest
from tiny_folder import save_tiny
from typer.testing import CliRunner

from headrace.bench.engine import KEYS, Bench, bench_engine, measure
from headrace.cli.app import app
from headrace.errors import CheckpointError, EngineError, InvalidInput
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("tiny"))[0])


@pytest.fixture
def bench(tiny):
    options = EngineOptions(path=tiny, name="tiny", threads=1, kv_memory=4 << 20, max_step_ms=0, prefix_cache=False)
    return Bench(*build_engine(options, lambda params: None))


def test_rates_are_tokens_over_the_best_time(bench, monkeypatch):
    """The definitions, with a clock of our own: 2 ms a prompt token, 10 ms a further token, and a slow first try."""
    runs = []

    def run(batch, prompt_tokens, new_tokens):
        runs.append((batch, prompt_tokens, new_tokens))
        slow = runs.count(runs[-1]) == 1
        return 0.002 * batch * prompt_tokens + 0.010 * (new_tokens - 1) + slow

    monkeypatch.setattr(Bench, "run", staticmethod(run))
    found = measure(bench, KEYS, 3, lambda key, rate: None)
    assert found.rates["prefill_128"] == pytest.approx(500)
    for batch in (1, 8, 32):
        assert found.rates[f"decode_b{batch}"] == pytest.approx(batch * 100)
        assert runs.count((batch, 128, 65)) == 3
        assert runs.count((batch, 128, 1)) == (6 if batch == 1 else 3)  # prefill_128 is the same run


def test_a_run_goes_through_the_engine(bench):
    before = bench.engine.stats()
    assert bench.run(3, 20, 5) > 0
    after = bench.engine.stats()
    assert after.prompt_tokens - before.prompt_tokens == 60
    assert after.output_tokens - before.output_tokens == 15
    assert after.cached_tokens == after.pages_cached == after.pages_used == 0
    assert 0 < bench.outside < 1
    bench.engine.check()


def test_an_engine_that_fails_is_not_measured(bench, monkeypatch):
    def broken(slot, logits, position, mask):
        raise ValueError("broken")

    monkeypatch.setattr(bench.engine.executor.slots, "draw", broken)
    with pytest.raises(EngineError, match="broken"):
        bench.run(1, 4, 2)


def test_measures_a_model(tiny):
    reports = []
    found = bench_engine(
        tiny, "tiny", threads=1, repeat=1, only=["decode_b8", "prefill_128"], report=lambda *a: reports.append(a)
    )
    assert list(found.rates) == ["prefill_128", "decode_b8"]
    assert reports == list(found.rates.items())
    assert min(found.rates.values()) > 0
    assert all(0 < share < 1 for share in found.outside_executor.values())


def test_what_does_not_fit_the_context_is_skipped(tiny):
    found = bench_engine(tiny, "tiny", threads=1, repeat=1, only=["prefill_2048"])
    assert found.rates == {}
    assert "2049" in found.skipped["prefill_2048"]


def test_bad_options(tiny, tmp_path):
    with pytest.raises(InvalidInput, match="decode_b8") as caught:
        bench_engine(tiny, "tiny", only=["decode_b9"])
    assert caught.value.field == "only"
    with pytest.raises(InvalidInput):
        bench_engine(tiny, "tiny", repeat=0)
    with pytest.raises(CheckpointError):
        bench_engine(str(tmp_path), "none")


def test_the_last_line_is_the_json_object(tiny, tmp_path):
    args = ["bench", "engine", tiny, "--threads", "1", "--repeat", "1", "--only", "prefill_128"]
    result = CliRunner().invoke(app, [*args, "--json", "-"], catch_exceptions=False)
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["prefill_128"] > 0
    assert (found["model"], found["executor"], found["threads"]) == (tiny, "eager float32", 1)
    assert "prefill_128" in found["outside_executor"]
    file = tmp_path / "out.json"
    result = CliRunner().invoke(app, [*args, "--json", str(file)], catch_exceptions=False)
    assert json.loads(file.read_text())["prefill_128"] > 0
    assert "prefill_128" in result.stdout  # the table, for people
    result = CliRunner().invoke(app, [*args, "--json", str(tmp_path / "no" / "out.json")])
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


@pytest.mark.bars
def test_the_real_model(smollm2):
    found = bench_engine(str(smollm2), "smollm2-135m", repeat=1)
    assert set(found.rates) == set(KEYS)
    assert max(found.outside_executor.values()) < 0.10
