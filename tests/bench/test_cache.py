"""Replays of traces beside plain second implementations."""

import gzip
import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.bench.cache import foresee, measure_hits, replay
from headrace.bench.cache_cost import measure_costs
from headrace.bench.cache_trace import Asked, CacheTrace, read_cache_trace
from headrace.cli.app import app
from headrace.memory.eviction import oldest_first

# Paths of a tree with two children everywhere: page numbers are those of a heap.
PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=25)


def trace_of(paths, outputs):
    asked = []
    for n, (path, output) in enumerate(zip(paths, outputs, strict=True)):
        pages, at = [], 1
        for turn in path:
            at = 2 * at + turn
            pages.append(at)
        prompt = max(1, len(pages) - output)
        asked.append(Asked(float(n), prompt, np.array(pages, np.int32), prompt))
    return CacheTrace("test", 1, asked, 64)


def plain(trace, pages, goes_first):
    """Page by page: of the cached pages that no other goes on from, one goes after the other."""
    cached, hits = {}, 0
    for n, asked in enumerate(trace.asked):
        prompt = asked.pages[: asked.prompt_pages].tolist()
        hits += next((k for k, page in enumerate(prompt) if page not in cached), len(prompt))
        for page in asked.pages.tolist():
            cached[page] = n
        while len(cached) > pages:
            leaves = [page for page in cached if 2 * page not in cached and 2 * page + 1 not in cached]
            del cached[min(leaves, key=lambda page: goes_first(n, page, cached))]
    return hits / sum(asked.tokens for asked in trace.asked)


@settings(deadline=None)
@given(paths=PATHS, outputs=st.lists(st.integers(0, 2), min_size=25, max_size=25), pages=st.integers(1, 20))
def test_foresight_gives_up_what_is_used_last(paths, outputs, pages):
    trace = trace_of(paths, outputs[: len(paths)])

    def use(n, page, _):
        later = (k for k in range(n + 1, len(paths)) if page in trace.asked[k].pages[: trace.asked[k].prompt_pages])
        return -next(later, 1000)

    assert foresee(trace, pages) == pytest.approx(plain(trace, pages, use))


@settings(deadline=None)
@given(paths=PATHS, pages=st.integers(1, 20))
def test_the_tree_with_lru_is_lru(paths, pages):
    """Unless the plan, which is made ahead for several leaves, matters: few leaves are planned one at a time."""
    trace = trace_of(paths, [0] * len(paths))
    assert replay(trace, pages, oldest_first) == pytest.approx(plain(trace, pages, lambda n, page, used: used[page]))


def mooncake(path, lines):
    rows = [dict(zip(("timestamp", "input_length", "output_length", "hash_ids"), line, strict=True)) for line in lines]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_an_answer_is_part_of_the_next_prompt(tmp_path):
    """The second request goes on from the first, whose answer fills block 3; the third shares two blocks."""
    file = tmp_path / "t.jsonl"
    mooncake(file, [(0, 1100, 900, [1, 2, 9]), (1000, 2100, 10, [1, 2, 3, 4, 5]), (2000, 1500, 0, [1, 2, 6])])
    trace = read_cache_trace(file)
    assert [asked.prompt_pages for asked in trace.asked] == [2, 4, 2]
    pages = [asked.pages.tolist() for asked in trace.asked]
    assert pages[0] == pages[1][:3]
    assert pages[2] == pages[0][:2]
    rates = measure_hits(file, [1.0], active=1, seed=0)[0]
    assert rates.lru == rates.value == rates.belady == pytest.approx(5 * 512 / (1100 + 2100 + 1500))


def test_agents_share_nothing_across_files(tmp_path):
    for name in "ab":
        calls = [
            {"type": "s", "t": 5.0 * n, "in": 64 * (n + 1), "out": 64, "hash_ids": list(range(n + 1))} for n in range(4)
        ]
        content = {"id": name, "block_size": 64, "requests": calls}
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    trace = read_cache_trace(tmp_path, active=2)
    assert trace.page_tokens == 64
    assert len(trace.asked) == 8
    assert trace.distinct == 2 * (4 + 2)  # behind one block no answer is recognized, and nobody goes on from the last
    assert [asked.at for asked in trace.asked] == sorted(asked.at for asked in trace.asked)


def test_the_verb_prints_a_table(tmp_path):
    mooncake(tmp_path / "t.jsonl", [(1000 * n, 1024, 0, [n % 3, 10 + n % 3]) for n in range(12)])
    target = tmp_path / "out.json"
    found = CliRunner().invoke(
        app, ["bench", "cache", str(tmp_path / "t.jsonl"), "--share", "50%", "--json", str(target)]
    )
    assert found.exit_code == 0, found.output
    assert "Belady" in found.output
    hits = json.loads(target.read_text())["hits"]
    assert [hit["pages"] for hit in hits] == [3]
    assert hits[0]["value"] >= hits[0]["lru"]


def test_costs_are_measured():
    found = measure_costs(tokens=20_000, repeat=2)
    assert len(found) == len(OrderedDict.fromkeys((times.groups, times.operation) for times in found)) == 21
    assert all(0 < times.p50 <= times.p99 for times in found)
