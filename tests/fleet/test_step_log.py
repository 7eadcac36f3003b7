"""The step log is a trace: an array of events, open at its end."""

import json

import pytest
from engines import engine_for, request
from tiny_folder import save_tiny

from headrace.errors import InvalidInput
from headrace.fleet.step_log import StepLog


def events(path):
    return json.loads(path.read_text().rstrip().rstrip(",") + "]")


def test_steps_of_an_engine(tmp_path):
    engine = engine_for(save_tiny(tmp_path)[0])
    log = StepLog(tmp_path / "steps.json")
    engine.add(request(0, [5, 6, 7]))
    while engine.has_work:
        tokens = sum(len(delta.tokens) for delta in engine.step())
        log.step(engine.stats(), tokens)
    steps = [e for e in events(tmp_path / "steps.json") if e["ph"] == "X" and e["name"].startswith("step")]
    assert [e["args"]["step"] for e in steps] == list(range(1, 17))
    assert all(e["args"]["tokens"] == 1 for e in steps)
    ends = [e["ts"] + e["dur"] for e in steps]
    assert all(end <= after["ts"] + 0.01 for end, after in zip(ends, steps[1:], strict=False))
    counters = {e["name"] for e in events(tmp_path / "steps.json") if e["ph"] == "C"}
    assert counters == {"samples", "pages"}


def test_a_second_process_goes_on_in_the_same_file(tmp_path):
    for _ in range(2):
        StepLog(tmp_path / "steps.json")
    assert len(events(tmp_path / "steps.json")) == 4


def test_a_file_that_cannot_be_written_names_the_option(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        StepLog(tmp_path / "nowhere" / "steps.json")
    assert caught.value.field == "step_log"
