"""Result files: what is written is what is read, and nothing else is."""

from __future__ import annotations

import copy
import json
import os
import random
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bench_samples import Row, answered, gather, random_samples, result_of, round_of, samples_of_any_kind
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.results import schema
from headrace.bench.results.compare import compare
from headrace.bench.results.latency import check_samples
from headrace.bench.results.result_file import (
    encode,
    from_requests,
    load_comparison,
    load_result,
    load_sweeps,
    save,
    to_requests,
)
from headrace.bench.results.schema import Comparison, Point, Requests, Result, Search, Sweep, Swept
from headrace.bench.results.sweeps import compare_sweeps
from headrace.errors import InvalidInput


def small_result(seed=0, requests=30, **given):
    samples = random_samples(np.random.default_rng(seed), requests, tokens=4, failed=0.1)
    return result_of([round_of(samples, {"ttft": 0.3}), round_of(samples, {"ttft": 0.3})], **given)


def assert_same(found, samples, within):
    for each in fields(samples):
        mine, theirs = getattr(samples, each.name), getattr(found, each.name)
        if each.name == "error":
            assert mine == theirs
        else:
            np.testing.assert_allclose(theirs, mine, rtol=0, atol=within, err_msg=each.name)
            assert theirs.dtype == mine.dtype, each.name


@given(samples_of_any_kind())
def test_columns_hold_the_samples_to_the_microsecond(samples):
    columns = msgspec.json.decode(msgspec.json.encode(to_requests(samples)), type=Requests)
    found = from_requests(columns)
    assert_same(found, samples, within=0.501e-6)
    check_samples(found)
    assert to_requests(found) == columns, "what was rounded once does not change again"
    assert_same(from_requests(to_requests(found)), found, within=0)


def test_no_error_adds_up_over_many_gaps():
    samples = gather([answered(0.0, 0.1, [1 / 3e4] * 20_000)])
    assert_same(from_requests(to_requests(samples)), samples, within=0.501e-6)


def test_a_large_round_is_quick_to_write_and_read():
    samples = random_samples(np.random.default_rng(1), 2000, tokens=100)
    columns = to_requests(samples)
    assert_same(from_requests(columns), samples, within=0.501e-6)
    assert len(msgspec.json.encode(columns)) < 10 * len(samples.event_times) + 200 * len(samples)


def test_results_and_comparisons_come_back(tmp_path):
    result = small_result()
    save(result, tmp_path / "a.json")
    assert load_result(tmp_path / "a.json") == result
    comparison = compare(result, small_result(seed=1))
    save(comparison, str(tmp_path / "c.json"))
    assert load_comparison(tmp_path / "c.json") == comparison
    swept = Swept("a", small_result(sweep=Sweep(over="concurrency", loads=[1.0, 2.0])))
    sweeps = compare_sweeps([swept, Swept("b", swept.result)])
    save(sweeps, tmp_path / "s.json")
    assert load_sweeps(tmp_path / "s.json") == sweeps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "c.json", "s.json"]
    assert json.loads(encode(result))["schema"] == "headrace.bench.serve/1"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    save(small_result(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InvalidInput, match=r"a\.json cannot be written: No space left on device"):
        save(small_result(seed=2), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("path", ["missing/a.json", ".", "a\0b"])
def test_where_nothing_can_be_written(tmp_path, path):
    with pytest.raises(InvalidInput, match="cannot be written"):
        save(small_result(), f"{tmp_path}/{path}")


def refusal(tmp_path, data: bytes, load=load_result) -> str:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def test_what_is_no_file(tmp_path):
    for path, says in [
        (tmp_path / "none", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        ("a\0b", "is not a path"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            load_result(path)


def test_what_is_no_result(tmp_path):
    result = small_result()
    comparison = compare(result, result)
    assert refusal(tmp_path, b"").startswith("FILE is not JSON")
    assert refusal(tmp_path, b"\xff\xfe").startswith("FILE is not JSON")
    assert refusal(tmp_path, b'{"x": ' + b"[" * 100_000).startswith("FILE is not JSON")
    assert refusal(tmp_path, encode(result)[:-9]).startswith("FILE is not JSON")
    assert refusal(tmp_path, b"[]").startswith("FILE is not what a result holds")
    assert refusal(tmp_path, b"{}").startswith("FILE is not what a result holds")
    assert "not a result of headrace bench" in refusal(tmp_path, b'{"schema": "other"}')
    assert "this version of headrace reads 'headrace.bench.serve/1'" in refusal(
        tmp_path, b'{"schema": "headrace.bench.serve/2"}'
    )
    assert "holds a comparison, where a result is needed" in refusal(tmp_path, encode(comparison))
    assert "holds a result, where a comparison is needed" in refusal(tmp_path, encode(result), load_comparison)
    assert "Object missing required field" in refusal(tmp_path, b'{"schema": "headrace.bench.serve/1"}')


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("rounds",), [], "rounds: must hold at least one round"),
        (("rounds", 1, "requests", "sent"), [], "rounds[1].requests.sent: has 0 values, where due has 30"),
        (("rounds", 0, "requests", "due", 3), 9.0, "rounds[0].requests.due: must ascend"),
        (("rounds", 0, "requests", "gaps", 3), [-0.5], "rounds[0].requests.event_times: must ascend"),
        (("rounds", 0, "requests", "gaps", 3), [1e9, 1e9], "add up to too much"),
        (("rounds", 0, "requests", "first", 3), None, "gaps where there was no first output"),
        (("rounds", 0, "requests", "prompt_tokens", 3), -1, "rounds[0].requests.prompt_tokens: holds a count below 0"),
        (("rounds", 0, "requests", "session", 3), 10**30, "too large"),
        (("rounds", 0, "requests", "queue", 3), 1e300, "too large"),
        (("rounds", 0, "requests", "queue", 3), -1.0, "rounds[0].requests.queue: must not be negative"),
        (("rounds", 0, "summary", "window"), [3.0, 1.0], "summary.window: must be two ascending moments"),
        (("rounds", 0, "summary", "requests"), "many", "Expected `int`, got `str` - at `$.rounds[0].summary.requests`"),
        (("plan", "devices"), 0, "plan.devices: must be at least 1"),
        (("search", "points", 0, "round"), 2, "search.points[0].round: is the number of no round"),
        (("search", "points", 0, "rate"), 0, "search.points[0].rate: must be above 0"),
        (("sweep", "loads"), [1.0], "sweep.loads: has 1 values, where there are 2 rounds"),
        (("sweep", "loads"), [2.0, 2.0], "sweep.loads: must be above 0 and ascend"),
        (("sweep", "loads", 0), 0, "sweep.loads: must be above 0 and ascend"),
        (("sweep", "over"), "time", "Invalid enum value 'time' - at `$.sweep.over`"),
    ],
)
def test_what_cannot_be_is_named(tmp_path, path, value, says):
    search = Search(target_share=0.99, tolerance=0.05, max_rate=1.0, failed_rate=None, points=[Point(1.0, 0, True)])
    sweep = Sweep(over="rate", loads=[1.0, 2.0])
    document = json.loads(encode(small_result(search=search, sweep=sweep)))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert says in refusal(tmp_path, json.dumps(document).encode())


DOCUMENT = json.loads(encode(small_result(requests=12)))
STRANGE = [None, -1, 0, 1e308, -1e-320, 10**30, 0.5, "", "x", [], {}, True, [None], {"a": 1}, [0.1, 0.2]]


def places(value, path=()):
    """Every path into a document."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    if isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


PLACES = list(places(DOCUMENT))[1:]
OUTER = [place for place in PLACES if "requests" not in place[:-1]]  # the columns would drown them


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(PLACES), st.sampled_from(OUTER)), st.sampled_from([*STRANGE, "drop", "double"])
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_changed_file_is_read_or_refused(tmp_path_factory, changes):
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes:
        change(document, path, value)
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(document))
    try:
        found = load_result(path)
    except InvalidInput:
        return
    assert isinstance(compare(found, found), Comparison)
    assert isinstance(load_back(found), Result)


def change(document, path, value):
    place = document
    try:
        for step in path[:-1]:
            place = place[step]
        if value == "drop":
            del place[path[-1]]
        elif value == "double":
            place.insert(path[-1], place[path[-1]])
        else:
            place[path[-1]] = value
    except (TypeError, KeyError, IndexError, AttributeError):
        pass  # an earlier change took the place away


def load_back(result):
    return msgspec.json.decode(encode(result), type=Result)


def test_damaged_bytes_are_read_or_refused(tmp_path):
    data = json.dumps(DOCUMENT).encode()
    draw = random.Random(0)
    path = tmp_path / "damaged.json"
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b'0123456789-+.eE"[]{},:nul\x00\xff')
        path.write_bytes(damaged[: draw.randint(len(damaged) // 2, len(damaged))] if draw.random() < 0.2 else damaged)
        try:
            load_result(path)
        except InvalidInput:
            continue


def test_nothing_in_a_result_is_lost_to_json():
    """A value that JSON has no name for would become null, and the file could not be read."""
    rows = [Row(float(i), float(i), i + 0.1, error="http 500") for i in range(10)]
    for samples in (gather(rows), gather([]), gather([answered(0.0, 0.0)])):
        result = result_of([round_of(samples, {"ttft": 1.0})])
        assert load_back(result) == result
        assert load_back(compare(result, result).a) == result


def test_every_field_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "measures.md").read_text(encoding="utf-8")
    assert schema.RESULT_SCHEMA in text
    assert schema.COMPARISON_SCHEMA in text
    assert schema.SWEEPS_SCHEMA in text
    kinds = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    for kind in kinds:
        section = text.partition(f"#### `{kind.__name__}`")[2].partition("\n####")[0].partition("\n## ")[0]
        assert section, f"{kind.__name__} has no table"
        for name in kind.__struct_fields__:
            assert f"| `{name}` |" in section, f"{kind.__name__}.{name}"
