import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.workload.lengths import parse_lengths
from headrace.bench.workload.prefixes import ideal_cached_share
from headrace.bench.workload.records import Segment, Session, Turn, Workload
from headrace.bench.workload.synthetic import chat, random_prompts, shared_prefix
from headrace.errors import InvalidInput


def law(text):
    return parse_lengths(text, "length")


def keys(workload):
    return [segment.key for session in workload.sessions for turn in session.turns for segment in turn.segments]


def test_random_prompts_share_nothing():
    made = random_prompts(50, law("uniform:10:20"), law("normal:8:2"), 1)
    assert len(made.sessions) == made.requests == 50
    assert len(set(keys(made))) == 50
    assert {session.start for session in made.sessions} == {None}
    assert all(10 <= session.turns[0].tokens <= 20 for session in made.sessions)
    assert len({session.turns[0].output_tokens for session in made.sessions}) > 3
    assert made.parameters == {"sessions": 50, "prompt": "uniform:10:20", "output": "normal:8:2", "seed": 1}
    assert ideal_cached_share(made) == 0


def test_shared_prefixes_are_dealt_out_evenly_and_shuffled():
    made = shared_prefix(3, 31, 2, law("uniform:50:90"), law("7"), law("5"), 1.5, 4)
    used = [session.turns[0].segments[0] for session in made.sessions]
    counts = Counter(segment.key for segment in used)
    assert sorted(counts.values()) == [10, 10, 11]
    assert len(set(used)) == 3, "a system prompt has one length"
    assert [segment.key for segment in used] != [f"system {i % 3}" for i in range(31)]
    assert len(set(keys(made)) - set(counts)) == 62, "no two messages are alike"
    for session in made.sessions:
        first, second = session.turns
        assert (first.continues, first.think, len(first.segments)) == (False, 0, 2)
        assert (second.continues, second.think, len(second.segments), second.tokens) == (True, 1.5, 1, 7)


def test_the_share_of_a_shared_prefix_is_what_counting_says():
    made = shared_prefix(2, 10, 3, law("100"), law("10"), law("5"), 0, 0)
    # A session's prompts: 110, 125, 140. Found: the system prompt but for its first use, then all before the message.
    prompts, found = 10 * (110 + 125 + 140), 8 * 100 + 10 * (115 + 130)
    assert ideal_cached_share(made) == pytest.approx(found / prompts)


def test_chats_have_as_many_turns_as_drawn():
    made = chat(200, law("uniform:1:4"), law("uniform:3:9"), law("6"), 0.5, 0)
    assert Counter(len(session.turns) for session in made.sessions).keys() == {1, 2, 3, 4}
    assert len(set(keys(made))) == made.requests
    assert all([turn.continues for turn in s.turns] == [i > 0 for i in range(len(s.turns))] for s in made.sessions)
    assert made.parameters["turns"] == "uniform:1:4"


def test_a_seed_gives_one_workload():
    def made(seed):
        return shared_prefix(3, 9, 2, law("uniform:5:50"), law("uniform:5:50"), law("uniform:5:50"), 0, seed)

    assert msgspec.json.encode(made(5)) == msgspec.json.encode(made(5))
    assert made(5).sessions != made(6).sessions


ONE = law("1")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: random_prompts(0, ONE, ONE, 0), "sessions"),
        (lambda: random_prompts(1_000_001, ONE, ONE, 0), "sessions"),
        (lambda: random_prompts(1, ONE, ONE, -1), "seed"),
        (lambda: shared_prefix(0, 1, 1, ONE, ONE, ONE, 0, 0), "system_prompts"),
        (lambda: shared_prefix(1, 0, 1, ONE, ONE, ONE, 0, 0), "sessions"),
        (lambda: shared_prefix(1, 1, 0, ONE, ONE, ONE, 0, 0), "turns"),
        (lambda: shared_prefix(1, 1001, 1000, ONE, ONE, ONE, 0, 0), "sessions"),
        (lambda: shared_prefix(1, 1, 1, ONE, ONE, ONE, -1, 0), "think"),
        (lambda: shared_prefix(1, 1, 1, ONE, ONE, ONE, math.nan, 0), "think"),
        (lambda: chat(-3, ONE, ONE, ONE, 0, 0), "sessions"),
        (lambda: chat(10, law("10000000"), ONE, ONE, 0, 0), "sessions"),
        (lambda: chat(10, ONE, ONE, ONE, math.inf, 0), "think"),
    ],
)
def test_numbers_out_of_range_are_refused(make, field):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.field == field


def share_by_tokens(workload):
    """The same from the definition: the longest beginning that an earlier prompt has, token by token."""
    earlier, found, total = [], 0, 0
    order = sorted(range(len(workload.sessions)), key=lambda i: (workload.sessions[i].start or 0, i))
    for number in order:
        history = []
        for place, turn in enumerate(workload.sessions[number].turns):
            new = [(segment.key, i) for segment in turn.segments for i in range(segment.tokens)]
            prompt = history + new if turn.continues else new
            best = len(history) if turn.continues else 0
            for other in earlier:
                same = 0
                while same < min(len(other), len(prompt)) and other[same] == prompt[same]:
                    same += 1
                best = max(best, same)
            found, total = found + best, total + len(prompt)
            earlier.append(prompt)
            history = prompt + [("answer", number, place, i) for i in range(turn.output_tokens)]
    return found / total if total else 0.0


SEGMENTS = st.builds(Segment, st.sampled_from("abc"), st.integers(1, 3))
TURNS = st.tuples(st.lists(SEGMENTS, min_size=1, max_size=4), st.integers(1, 3), st.booleans())
SESSIONS = st.tuples(st.lists(TURNS, min_size=1, max_size=3), st.sampled_from([None, 0.0, 1.0, 2.5]))


@given(st.lists(SESSIONS, max_size=6))
def test_the_ideal_share_is_the_longest_common_beginning(sessions):
    made = []
    for turns, start in sessions:
        records = [
            Turn(segments=tuple(segments), output_tokens=output, continues=continues and i > 0)
            for i, (segments, output, continues) in enumerate(turns)
        ]
        made.append(Session(tuple(records), start))
    workload = Workload("w", {}, tuple(made))
    assert ideal_cached_share(workload) == pytest.approx(share_by_tokens(workload))
