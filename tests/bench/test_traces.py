import gzip
import json
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.workload.blocks import segments_of_blocks, shrunk
from headrace.bench.workload.prefixes import ideal_cached_share
from headrace.bench.workload.trace_options import AFTER_TOO_LONG, TOO_LONG
from headrace.bench.workload.traces import READERS, TraceOptions, agents, azure, mooncake, read_trace
from headrace.errors import InvalidInput

DATA = Path(os.environ.get("HEADRACE_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "traces"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the public traces are not in {DATA} (HEADRACE_TEST_DATA)")
PLAIN = TraceOptions()


def line(timestamp, prompt, output, hashes):
    return {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": hashes}


MOONCAKE = [
    line(0, 1300, 50, [7, 8, 9]),
    line(0, 512, 20, [7]),
    line(1500, 1024, 30, [7, 8]),
    line(3000, 1700, 1, [7, 8, 4, 5]),
    line(9000, 600, 5, [6]),
]

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 23:59:59.5000000,4808,10\r
2023-11-17 00:00:00.0000000,3180,8\r
2023-11-17 00:01:00.2500009,110,0"""


def call(t, prompt, output, hashes, kind="n", **times):
    return {"t": t, "type": kind, "model": "m", "in": prompt, "out": output, "hash_ids": hashes, **times}


AGENT = {
    "id": "trace_1",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        call(0.0, 200, 5, [1, 2, 3], api_time=2.0, think_time=0.0),
        {
            "t": 1.0,
            "type": "subagent",
            "agent_id": "a",
            "requests": [call(0.5, 64, 9, [50], api_time=1.0), call(4.0, 130, 9, [50, 51], think_time=2.25)],
        },
        call(5.0, 300, 6, [1, 2, 3, 4], "s", think_time=3.0),
        call(9.0, 340, 7, [1, 2, 3, 4, 5], "s", api_time=4.0, ttft=1.0, think_time=7.0),
        call(12.0, 290, 8, [1, 2, 6, 7], "s"),
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace"):
        path = tmp_path / name
        if isinstance(content, dict):
            content = json.dumps(content)
        if isinstance(content, list):
            content = "\n".join(map(json.dumps, content)) + "\n"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def prompts(workload):
    return [turn.segments for session in workload.sessions for turn in session.turns]


def lengths(workload):
    turns = [turn for session in workload.sessions for turn in session.turns]
    return [(turn.tokens, turn.output_tokens) for turn in turns]


def refused(kind, path, options=PLAIN):
    with pytest.raises(InvalidInput) as caught:
        read_trace(kind, path, options)
    assert caught.value.field.startswith(str(path))
    return caught.value.message


def test_mooncake_blocks_become_shared_segments(write):
    made = mooncake(write(MOONCAKE), TraceOptions(scale=0.5))
    assert [session.start for session in made.sessions] == [0, 0, 0.75, 1.5, 4.5]
    assert lengths(made) == [(1300, 50), (512, 20), (1024, 30), (1700, 1), (600, 5)]
    assert prompts(made) == [
        (("7", 512), ("8", 512), ("9", 276)),
        (("7", 512),),
        (("7", 512), ("8", 512)),
        (("7", 512), ("8", 512), ("4", 676)),  # 4 and 5 are only ever together
        (("6", 512), ("rest 4", 88)),
    ]
    assert ideal_cached_share(made) == pytest.approx((512 + 1024 + 1024) / (1300 + 512 + 1024 + 1700 + 600))
    assert made.parameters == {
        "file": "trace",
        "scale": 0.5,
        "shrink": 1.0,
        "limit": None,
        "context_length": None,
    }


def test_shrunken_blocks_keep_their_places(write):
    made = mooncake(write(MOONCAKE), TraceOptions(shrink=100))
    # Edges of blocks: 0, 5.12, 10.24, 15.36, rounded.
    assert prompts(made) == [
        (("7", 5), ("8", 5), ("9", 3)),
        (("7", 5),),
        (("7", 5), ("8", 5)),
        (("7", 5), ("8", 5), ("4", 7)),
        (("6", 5), ("rest 4", 1)),
    ]
    assert [output for _, output in lengths(made)] == [1, 1, 1, 1, 1]
    assert [tokens for tokens, _ in lengths(mooncake(write(MOONCAKE), TraceOptions(shrink=1e6)))] == [1] * 5


def test_limit_and_context_leave_out_and_say_so(write):
    made = mooncake(write(MOONCAKE), TraceOptions(limit=4, context_length=1054))
    assert lengths(made) == [(512, 20), (1024, 30)]
    assert made.skipped == {TOO_LONG: 2}
    assert mooncake(write(MOONCAKE), TraceOptions(limit=99)).skipped == {}
    assert "fits a context of 9 tokens" in refused("mooncake", write(MOONCAKE), TraceOptions(context_length=9))


def test_time_counts_from_the_first_line(write):
    made = mooncake(write([line(1_700_000_000_000, 5, 5, [1]), line(1_700_000_000_250, 5, 5, [2])]), PLAIN)
    assert [session.start for session in made.sessions] == [0, 0.25]


def test_azure_rows_become_single_requests(write):
    made = azure(write(AZURE), TraceOptions(scale=2, shrink=10))
    assert lengths(made) == [(481, 1), (318, 1), (11, 1)]
    assert [session.start for session in made.sessions] == [0, 1, 121.5]
    assert len({segments[0].key for segments in prompts(made)}) == 3
    zones = AZURE.replace(".5000000", ".5+00:00").replace(".0000000", "+00:00").replace(".2500009", ".25+00:00")
    assert [session.start for session in azure(write(zones), PLAIN).sessions] == [0, 0.5, 60.75]
    moved = "GeneratedTokens,more,TIMESTAMP,ContextTokens\n3,x,2023-11-16 18:17:03,77\n"
    assert lengths(azure(write(moved), PLAIN)) == [(77, 3)]


def test_an_agents_session_and_its_subagent(write):
    made = agents(write(gzip.compress(json.dumps(AGENT).encode())), TraceOptions(scale=2))
    parent, child = made.sessions
    assert (parent.start, child.start) == (0, 3)
    # The third counts from the second, whose end is not known, and not by its think_time.
    assert [turn.think for turn in parent.turns] == [0, 6, 8, 0]
    assert [turn.think for turn in child.turns] == [0, 4.5]
    assert not any(turn.continues for turn in parent.turns)
    assert [turn.segments for turn in parent.turns] == [
        (("trace_1 1", 128), ("trace_1 3", 64), ("trace_1 rest 0", 8)),
        (("trace_1 1", 128), ("trace_1 3", 64), ("trace_1 4", 64), ("trace_1 rest 1", 44)),
        (("trace_1 1", 128), ("trace_1 3", 64), ("trace_1 4", 64), ("trace_1 5", 64), ("trace_1 rest 2", 20)),
        (("trace_1 1", 128), ("trace_1 6", 128), ("trace_1 rest 3", 34)),
    ]
    assert [turn.segments for turn in child.turns] == [
        (("trace_1 50", 64),),
        (("trace_1 50", 64), ("trace_1 51", 64), ("trace_1 rest 5", 2)),
    ]


def test_an_agents_session_ends_before_what_is_too_long(write):
    made = agents(write(AGENT), TraceOptions(context_length=306))
    assert [len(session.turns) for session in made.sessions] == [2, 2]
    assert made.skipped == {TOO_LONG: 1, AFTER_TOO_LONG: 1}
    made = agents(write(AGENT), TraceOptions(context_length=150))
    assert [session.start for session in made.sessions] == [1.5]
    assert made.skipped == {TOO_LONG: 1, AFTER_TOO_LONG: 3}


def test_a_folder_of_agents(write, tmp_path):
    write(gzip.compress(json.dumps({**AGENT, "id": "b"}).encode()), "2.json.gz")
    write({**AGENT, "id": "a"}, "1.json")
    write("not one", "README.md")
    made = agents(tmp_path, PLAIN)
    assert [s.turns[0].segments[0].key for s in made.sessions] == ["a 1", "b 1", "a 50", "b 50"]
    assert len(agents(tmp_path, TraceOptions(limit=1)).sessions) == 2
    write({**AGENT, "id": "a"}, "3.json")
    with pytest.raises(InvalidInput, match=r"3\.json: has the id 'a' of 1\.json"):
        agents(tmp_path, PLAIN)


BAD_LINES = [
    ("{}", "timestamp"),
    ("[]", "object"),
    ("nonsense", "line 2"),
    ('{"timestamp": 0', "truncated"),
    (json.dumps(line(-1, 5, 5, [1])), "timestamp"),
    (json.dumps(line(0, "5", 5, [1])), "input_length"),
    (json.dumps(line(0, 5, 5.5, [1])), "output_length"),
    (json.dumps(line(0, 20_000_000, 5, [1])), "input_length"),
    (json.dumps(line(0, 5, 5, [-1])), "hash_ids"),
    (json.dumps(line(0, 5, 5, [2**70])), "hash_ids"),
    (json.dumps(line(0, 512, 5, [1, 2])), "2 hash_ids, but 512 tokens are 1 blocks"),
    ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": []}', "line 2"),
    ('{"x":' + "[" * 100_000, "line 2"),
]


@pytest.mark.parametrize(("text", "says"), BAD_LINES)
def test_a_bad_mooncake_line_is_named(write, text, says):
    message = refused("mooncake", write(json.dumps(MOONCAKE[0]) + "\n" + text + "\n"))
    assert message.startswith("line 2 ")
    assert says in message


def test_lines_out_of_order_are_refused(write):
    assert "line 2 is earlier" in refused("mooncake", write([line(5, 1, 1, [1]), line(4, 1, 1, [2])]))
    rows = AZURE.splitlines()
    assert "line 3 is earlier" in refused("azure", write("\n".join([rows[0], rows[2], rows[1]])))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("2023-11-18 18:17:03,5", "columns"),
        ("yesterday,5,5", "TIMESTAMP"),
        ("2023-11-18 18:17:03,-5,5", "ContextTokens"),
        ("2023-11-18 18:17:03,5,5.5", "GeneratedTokens"),
        ("2023-11-18 18:17:03,5,٣", "GeneratedTokens"),
        ("2023-11-18 18:17:03,99999999999999999999999,5", "ContextTokens"),
        ("2023-11-18 18:17:03+00:00,5,5", "time zone"),
        ('2023-11-18 18:17:03,5,"5"x', "CSV"),
        ("2023-11-18 18:17:03,5," + "5" * 200_000, "CSV"),
    ],
)
def test_a_bad_azure_row_is_named(write, row, says):
    message = refused("azure", write("\n".join([*AZURE.splitlines()[:2], row])))
    assert message.startswith("line 3 ")
    assert says in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "$.id"),
        ({"block_size": 0}, "$.block_size"),
        ({"hash_id_scope": "global"}, "$.hash_id_scope"),
        ({"requests": [{"type": "x"}]}, "$.requests[0].type"),
        ({"requests": [call(0, 5, -5, [])]}, "$.requests[0].out"),
        ({"requests": [{"type": "subagent", "t": 0, "requests": [call(0, 5, 5, 5)]}]}, "hash_ids"),
        ({"requests": []}, "no request"),
        ({"requests": [{"type": "subagent", "t": 0, "requests": []}]}, "no request"),
    ],
)
def test_a_bad_agents_file_says_where(write, change, says):
    assert says in refused("agents", write({**AGENT, **change}))


def test_files_that_cannot_be_read_are_named(write, tmp_path):
    for kind in READERS:
        assert "No such file" in refused(kind, tmp_path / "absent")
    for kind in ("mooncake", "azure"):
        assert "directory" in refused(kind, tmp_path)
        assert "no request" in refused(kind, write(b""))
    assert "no request" in refused("azure", write(AZURE.splitlines()[0]))
    assert "ContextTokens is missing" in refused("azure", write("TIMESTAMP,GeneratedTokens\n"))
    assert "UTF-8" in refused("azure", write(AZURE.encode() + b"\n\xff"))
    packed = gzip.compress(json.dumps(AGENT).encode())
    for damaged in (packed[:-9], packed[:20], packed[:30] + b"\xff" * 9 + packed[39:]):
        assert "cannot be read" in refused("agents", write(damaged))
    (tmp_path / "folder").mkdir()
    assert "holds no file" in refused("agents", tmp_path / "folder")
    with pytest.raises(InvalidInput, match="mooncake, azure, agents"):
        read_trace("sharegpt", tmp_path, PLAIN)


@pytest.mark.parametrize(
    "values",
    [
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"shrink": 0.5},
        {"shrink": float("nan")},
        {"limit": 0},
        {"context_length": 1},
    ],
)
def test_options_out_of_range_are_refused(values):
    with pytest.raises(InvalidInput) as caught:
        TraceOptions(**values)
    assert caught.value.field in values


SOURCES = {
    "mooncake": "\n".join(map(json.dumps, MOONCAKE)).encode(),
    "azure": AZURE.encode(),
    "agents": json.dumps(AGENT).encode(),
}
PIECES = st.sampled_from(
    [b'"', b"0", b"-", b"9" * 25, b",", b"[", b"{", b"}", b"\n", b"\x00", b"\xff", b"null", b"1e999"]
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES | st.binary(max_size=4)), max_size=3)


@settings(max_examples=200)
@given(st.sampled_from(list(READERS)), EDITS, st.booleans(), st.sampled_from([1, 3.7, 1000]))
def test_damaged_files_are_read_or_refused(kind, edits, packed, shrink):
    content = SOURCES[kind]
    if packed and kind == "agents":
        content = gzip.compress(content)
    for place, cut, piece in edits:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + cut :]
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            made = read_trace(kind, Path(file.name), TraceOptions(shrink=shrink))
        except InvalidInput as error:
            refusal = error
        else:
            refusal = None
    if refusal:
        assert file.name in str(refusal)
        return
    starts = [session.start for session in made.sessions]
    assert starts == sorted(starts)
    for tokens, output in lengths(made):
        assert min(tokens, output) >= 1
    assert all(segment.tokens >= 1 for segments in prompts(made) for segment in segments)
    assert all(turn.think >= 0 for session in made.sessions for turn in session.turns)
    assert 0 <= ideal_cached_share(made) < 1
    msgspec.json.encode(made)


def tokens_by_blocks(row, total, block, shrink, number):
    """Each token of a prompt as its block and its place in there, from the definition."""
    edges = [int(np.floor(k * block / shrink + 0.5)) for k in range(len(row) + 1)]
    tokens = [(name, i) for name, (low, high) in zip(row, pairwise(edges), strict=True) for i in range(high - low)]
    return tokens[:total] + [("rest", number, i) for i in range(total - len(tokens))]


def trie_rows(children):
    """Prompts whose hashes name whole beginnings, as in the traces: equal ones are at one place, after equal ones."""
    return [[hash(tuple(row[: i + 1])) % 2**40 for i in range(len(row))] for row in children]


ROWS = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8)


@given(ROWS, st.integers(1, 9), st.sampled_from([1, 1.5, 2, 7, 40]), st.booleans(), st.data())
def test_segments_name_the_same_tokens_as_blocks(rows, block, shrink, trie, data):
    rows = trie_rows(rows) if trie or shrink > 1 else rows
    wholes = [data.draw(st.integers(0, len(row) * block + 5)) for row in rows]
    totals = shrunk(wholes, shrink).clip(1)
    made = segments_of_blocks(rows, totals, block=block, shrink=shrink, scope="s ")
    to_block, to_segment = {}, {}
    for number, (row, segments) in enumerate(zip(rows, made, strict=True)):
        assert all(segment.tokens >= 1 and segment.key.startswith("s ") for segment in segments)
        found = [(segment.key, i) for segment in segments for i in range(segment.tokens)]
        expected = tokens_by_blocks(row, int(totals[number]), block, shrink, number)
        assert len(found) == len(expected) == totals[number]
        for one, other in zip(found, expected, strict=True):
            assert to_block.setdefault(one, other) == other
            assert to_segment.setdefault(other, one) == one


def test_blocks_that_stay_together_are_one_segment():
    made = segments_of_blocks([[1, 2, 3, 4], [1, 2, 5, 6, 7]], np.array([40, 45]), block=10, shrink=1, scope="")
    assert made == [(("1", 20), ("3", 20)), (("1", 20), ("5", 25))]


@needs_data
@pytest.mark.parametrize(
    ("name", "requests", "span", "prompt", "output", "share"),
    [("conversation", 12_031, 3537, 12_035, 343, 0.374), ("synthetic", 3_993, 1022, 15_325, 149, 0.651)],
)
def test_the_public_mooncake_traces(name, requests, span, prompt, output, share):
    begin = time.process_time()
    made = mooncake(DATA / f"{name}_trace.jsonl", PLAIN)
    assert time.process_time() - begin < 2  # 0.2 s on the machine it was written on
    check_figures(made, requests, span, prompt, output)
    assert ideal_cached_share(made) == pytest.approx(share, abs=5e-4)
    smaller = mooncake(DATA / f"{name}_trace.jsonl", TraceOptions(shrink=32))
    assert ideal_cached_share(smaller) == pytest.approx(share, abs=2e-3)


@needs_data
@pytest.mark.parametrize(
    ("name", "requests", "span", "prompt", "output"),
    [("code", 8_819, 3436, 2048, 28), ("conv", 19_366, 3502, 1155, 211)],
)
def test_the_public_azure_traces(name, requests, span, prompt, output):
    made = azure(DATA / f"AzureLLMInferenceTrace_{name}.csv", PLAIN)
    check_figures(made, requests, span, prompt, output)
    assert ideal_cached_share(made) == 0


def check_figures(made, requests, span, prompt, output):
    assert made.requests == len(made.sessions) == requests
    assert made.sessions[-1].start == pytest.approx(span, abs=0.5)
    tokens, answers = np.array(lengths(made)).mean(0)
    assert tokens == pytest.approx(prompt, abs=0.5)
    assert answers == pytest.approx(output, abs=0.5)


@needs_data
def test_the_public_agents_traces():
    made = agents(DATA / "agents", PLAIN)
    found = total = requests = 0
    for path in (DATA / "agents").glob("*.json.gz"):
        seen = set()
        for entry in json.loads(gzip.decompress(path.read_bytes()))["requests"]:
            for request in entry.get("requests", [entry]):
                known = [block in seen for block in request["hash_ids"]]
                found += 64 * (known.index(False) if False in known else len(known))
                total += request["in"]
                requests += 1
                seen.update(request["hash_ids"])
    assert made.requests == requests
    assert sum(tokens for tokens, _ in lengths(made)) == total
    assert ideal_cached_share(made) == pytest.approx(found / total, abs=1e-12)
    assert found / total > 0.95
    assert sum(session.start == 0 for session in made.sessions) == 48
    assert len(made.sessions) == 52
