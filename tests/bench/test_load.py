"""Rounds of load on the scripted server: what was sent, what was seen, what is reported of failures."""

import os
import shutil
import signal
import subprocess
import time

import httpx
import numpy as np
import pytest
from scripted_server import scripted, tokens_of
from service_law import Script, replay

from headrace.bench.load.collect import to_samples
from headrace.bench.load.compose import Composer
from headrace.bench.load.driver import run_round
from headrace.bench.load.http import Address
from headrace.bench.load.pace import ClosedLoop, OpenLoop
from headrace.bench.load.target import Inquirer, Question, inquire
from headrace.bench.results.certify import certify
from headrace.bench.results.measure import summarize, window
from headrace.bench.results.samples import UNKNOWN
from headrace.bench.workload.prompts import build_lexicon
from headrace.bench.workload.records import Segment, Session, Turn
from headrace.errors import HeadraceError, InvalidInput

QUICK = Script(ttft=0.02, gap=0.005)


def ask(url, **question):
    inquirer = Inquirer(url, {})
    lexicon = build_lexicon(lambda text: tokens_of(text))
    try:
        asked = Question(**question)
        return inquire(inquirer, asked, inquirer.model(asked.model), lexicon), lexicon
    finally:
        inquirer.close()


def single(n, prompt=20, output=5):
    return [Session((Turn(segments=(Segment(f"p{i}", prompt),), output_tokens=output),)) for i in range(n)]


def run(url, sessions, schedule, *, timeout=20, salt="0", **question):
    server, lexicon = ask(url, **question)
    composer = Composer(server, lexicon, 0, salt)
    outcome = run_round(composer, sessions, schedule, timeout_seconds=timeout, watch=lambda snapshot: None)
    return to_samples(outcome.exchanges, outcome.zero), outcome


def log(url):
    return httpx.get(f"{url}/log").json()["requests"]


def every(seconds, n):
    return OpenLoop(np.arange(n) * seconds)


# --- what is measured -------------------------------------------------------------------------------------------------


def test_an_open_loop_sees_what_the_law_says():
    script = Script(ttft=0.05, gap=0.01, cached=7)
    with scripted(script) as url:
        samples, outcome = run(url, single(40), every(0.02, 40))
    assert samples.error == ("",) * 40
    truth = replay(script, samples.due, samples.planned_output)
    late = samples.event_times - np.concatenate([events for _, events in truth])
    assert np.median(late) < 0.02  # a loose bound, for machines under load; the bars have the tight one
    assert late.min() > -0.001
    assert (samples.prompt_tokens == 20).all()
    assert (samples.planned_prompt == 20).all()
    assert (samples.output_tokens == 5).all()
    assert (samples.cached_tokens == 7).all()
    assert (samples.events == 5).all()
    assert outcome.log.connections < 40, "connections are used again"
    assert 0 < outcome.log.cpu < outcome.log.wall


def test_tokens_are_counted_by_usage_and_not_by_events():
    with scripted(Script(ttft=0.01, gap=0.001, tokens_per_event=4)) as url:
        samples, _ = run(url, single(3, output=10), every(0.01, 3))
    assert (samples.output_tokens == 10).all()
    assert (samples.events == 3).all()


def test_without_usage_tokens_are_counted_by_their_ids():
    with scripted(Script(ttft=0.01, gap=0.001, usage=False, returns_ids=True)) as url:
        samples, _ = run(url, single(3, output=7), every(0.01, 3))
    assert (samples.output_tokens == 7).all()
    assert (samples.prompt_tokens == UNKNOWN).all()


def test_an_open_loop_does_not_wait_for_answers():
    with scripted(Script(ttft=0.5, gap=0.0, slots=1)) as url:
        samples, _ = run(url, single(6, output=1), every(0.01, 6))
    assert (samples.sent - samples.due).max() < 1
    ttft = samples.first - samples.due
    assert 6 * 0.5 - 5 * 0.01 - 0.1 < ttft[-1] < 5
    assert 5 * 0.5 - 5 * 0.01 - 0.1 < samples.queue[-1] < 5


def test_a_closed_loop_keeps_so_many_under_way():
    with scripted(QUICK) as url:
        samples, _ = run(url, single(30), ClosedLoop(4))
    assert len(samples) == 30
    moments = np.concatenate([[(due, 1), (end, -1)] for due, end in zip(samples.due, samples.end, strict=True)])
    under_way = np.cumsum(moments[np.lexsort((moments[:, 1], moments[:, 0])), 1])
    assert under_way.max() == 4


def test_a_closed_loop_ends_in_time():
    with scripted(QUICK) as url:
        samples, outcome = run(url, single(10_000), ClosedLoop(2, duration=0.5))
    assert 0 < len(samples) < 100
    assert samples.due.max() < 0.5
    assert outcome.log.wall < 5


def test_no_session_is_no_round():
    with scripted(QUICK) as url:
        for schedule in (ClosedLoop(2), every(1, 0)):
            samples, _ = run(url, [], schedule)
            assert len(samples) == 0


# --- conversations ----------------------------------------------------------------------------------------------------


def turns(n, think=0.0, output=3):
    first = Turn(segments=(Segment("system", 12), Segment("u0", 4)), output_tokens=output)
    rest = [
        Turn(segments=(Segment(f"u{i}", 4),), output_tokens=output, continues=True, think=think) for i in range(1, n)
    ]
    return Session((first, *rest))


def test_a_turn_comes_its_think_time_after_the_answer():
    with scripted(QUICK) as url:
        samples, _ = run(url, [turns(3, think=0.1)], ClosedLoop(1))
    assert samples.turn.tolist() == [0, 1, 2]
    assert samples.due[1:] - samples.end[:-1] == pytest.approx([0.1, 0.1], abs=1e-6)


def test_a_conversation_in_ids_repeats_the_answer_s_ids():
    with scripted(Script(ttft=0.01, gap=0.001, returns_ids=True, record=True)) as url:
        samples, _ = run(url, [turns(2)], ClosedLoop(1))
        first, second = (entry["prompt"] for entry in log(url))
    assert second[: len(first) + 3] == first + tokens_of("word word word")
    assert len(second) == len(first) + 3 + 4
    assert samples.planned_prompt.tolist() == samples.prompt_tokens.tolist() == [16, 23]


def test_without_ids_drawn_words_stand_in_for_the_answer():
    with scripted(Script(ttft=0.01, gap=0.001, record=True)) as url:
        samples, _ = run(url, [turns(2)], ClosedLoop(1))
        first, second = (entry["prompt"] for entry in log(url))
    assert second[: len(first)] == first
    assert samples.planned_prompt.tolist() == samples.prompt_tokens.tolist() == [16, 23]


def test_a_conversation_in_text_repeats_the_answer_s_text():
    with scripted(Script(ttft=0.01, gap=0.001, ids=False, record=True)) as url:
        samples, _ = run(url, [turns(2)], ClosedLoop(1))
        first, second = (entry["prompt"] for entry in log(url))
    assert second.startswith(first + " word" * 3)
    assert samples.planned_prompt.tolist() == [16, UNKNOWN]
    assert samples.prompt_tokens.tolist() == [16, 23]


def test_a_chat_repeats_the_answer_as_a_message():
    with scripted(Script(ttft=0.01, gap=0.001, overhead=9, record=True)) as url:
        samples, _ = run(url, [turns(2)], ClosedLoop(1), api="chat")
        first, second = (entry["prompt"] for entry in log(url))
    assert second[:1] == first
    assert second[1] == {"role": "assistant", "content": " word word word"}
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert samples.planned_prompt[0] == samples.prompt_tokens[0]


def test_prompts_share_what_their_segments_share_and_rounds_share_nothing():
    sessions = [
        Session((Turn(segments=(Segment("system", 30), Segment(f"u{i}", 4)), output_tokens=1),)) for i in range(2)
    ]
    with scripted(Script(ttft=0.01, gap=0.001, record=True)) as url:
        run(url, sessions, ClosedLoop(1), salt="a")
        run(url, sessions, ClosedLoop(1), salt="b")
        one, two, three, _ = (entry["prompt"] for entry in log(url))
    assert one[:30] == two[:30]
    assert one[30:] != two[30:]
    assert sum(a == b for a, b in zip(one, three, strict=True)) < 5


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "after", "kind"),
    [
        ("http", 0, "http 429"),
        ("event", 2, "error in stream"),
        ("event", 0, "error in stream"),
        ("disconnect", 2, "disconnected"),
        ("truncate", 2, "truncated"),
        ("noise", 1, "protocol"),
        ("no http", 0, "protocol"),
        ("hang", 2, "timeout"),
        ("old", 0, "http 503"),
        ("upgrade", 0, "protocol"),
        ("deep", 1, "protocol"),
    ],
)
def test_errors_by_kind(fault, after, kind):
    with scripted(Script(ttft=0.01, gap=0.001, faults={fault: (3, after)})) as url:
        samples, outcome = run(url, single(9), every(0.02, 9), timeout=1)
    assert samples.error == ("", "", kind) * 3
    assert set(outcome.messages) == {kind}
    assert samples.events[2] == after
    assert samples.succeeded.sum() == 6
    assert not np.isnan(samples.end).any()


def test_a_server_that_goes_away():
    with scripted(QUICK) as url:
        server, lexicon = ask(url)
    composer = Composer(server, lexicon, 0, "0")
    outcome = run_round(composer, single(3), ClosedLoop(1), timeout_seconds=5, watch=lambda snapshot: None)
    assert [exchange.error for exchange in outcome.exchanges] == ["connect"] * 3


def test_a_session_ends_with_its_first_error():
    with scripted(Script(ttft=0.01, gap=0.001, faults={"http": (2, 0)})) as url:
        samples, _ = run(url, [turns(3), turns(3)], ClosedLoop(1))
    assert samples.turn.tolist() == [0, 1, 0, 1]
    assert samples.error == ("", "http 429") * 2


def test_a_connection_found_closed_is_no_error():
    with scripted(Script(ttft=0.01, gap=0.001, close_after=1)) as url:
        # The server closes 20 ms after an answer, which is when the next request is on its way.
        samples, outcome = run(url, [turns(30, think=0.0196, output=1)], ClosedLoop(1))
    assert samples.error == ("",) * 30
    assert outcome.log.connections >= 15


def test_a_request_lost_on_a_used_connection_is_sent_once_more():
    with scripted(Script(ttft=0.01, gap=0.001, drop_reused=True)) as url:
        samples, outcome = run(url, single(20), ClosedLoop(1))  # and so are the questions before it
    assert samples.error == ("",) * 20
    assert outcome.log.resent == 19


def test_counts_that_cannot_be_are_unknown():
    with scripted(Script(ttft=0.01, gap=0.001, faults={"strange": (1, 1)})) as url:
        samples, _ = run(url, single(2), ClosedLoop(1))
    assert samples.error == ("", "")
    assert (samples.prompt_tokens == UNKNOWN).all()
    assert (samples.output_tokens == UNKNOWN).all()
    assert np.isnan(samples.queue).all()


def test_a_generator_that_stood_still_certifies_nothing():
    def freeze(snapshot):
        if 1 < snapshot.seconds < 1.6:
            time.sleep(0.3)

    with scripted(QUICK) as url:
        server, lexicon = ask(url)
        composer = Composer(server, lexicon, 0, "0")
        outcome = run_round(composer, single(10_000), ClosedLoop(2, duration=3), timeout_seconds=5, watch=freeze)
    samples = to_samples(outcome.exchanges, outcome.zero)
    assert outcome.log.loop_lag.max() > 0.25
    assert len(outcome.log.loop_lag) == pytest.approx(outcome.log.wall / 0.01, rel=0.2)
    certificate = certify(samples, outcome.log, window(samples))
    assert not certificate.certified
    assert "event loop" in certificate.reasons[0]


def test_an_interrupted_round_keeps_what_was_seen():
    def interrupt(snapshot):
        if snapshot.ended > 5:
            os.kill(os.getpid(), signal.SIGINT)

    with scripted(Script(ttft=0.05, gap=0.001)) as url:
        server, lexicon = ask(url)
        composer = Composer(server, lexicon, 0, "0")
        outcome = run_round(composer, single(2000), ClosedLoop(4), timeout_seconds=5, watch=interrupt)
    assert outcome.interrupted
    assert 5 < len(outcome.exchanges) < 2000
    samples = to_samples(outcome.exchanges, outcome.zero)
    assert 0 < np.isnan(samples.end).sum() <= 4, "what was under way is there, without an end"
    assert summarize(samples, window(samples)).errors == {"unfinished": np.isnan(samples.end).sum()}


# --- what a server is and takes ---------------------------------------------------------------------------------------


def test_what_is_found_out():
    with scripted(Script(overhead=5, returns_ids=True)) as url:
        server, _ = ask(url)
        chat, _ = ask(url, api="chat")
        text, _ = ask(url, prompts="text")
    assert (server.target.model, server.target.context_length, server.target.server) == (
        "scripted",
        100_000,
        "scripted",
    )
    assert (server.target.prompts, server.overhead, server.ignores_eos, server.returns_ids) == ("tokens", 0, True, True)
    assert (chat.target.prompts, chat.overhead) == ("text", 6)  # the head of a chat's message is a word of its own
    assert (text.target.prompts, text.overhead) == ("text", 5)


def test_what_a_server_does_not_take_is_left_out_and_said():
    with scripted(Script(ids=False, refuses=["ignore_eos"])) as url:
        server, _ = ask(url)
    assert (server.target.prompts, server.ignores_eos) == ("text", False)
    assert len(server.target.notes) == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Script(usage=False), "neither usage"),
        (Script(refuses=["max_tokens"]), "max_tokens is not taken"),
    ],
)
def test_servers_that_cannot_be_measured(script, says):
    with scripted(script) as url, pytest.raises(HeadraceError, match=says):
        ask(url)


def test_a_server_without_tokenize_asks_for_a_tokenizer():
    with scripted(Script(tokenizes=False)) as url, pytest.raises(HeadraceError, match="--tokenizer"):
        Inquirer(url, {}).tokenize("a word", "scripted")


def test_a_model_that_is_not_listed_is_asked_for_by_its_name():
    with scripted(Script()) as url:
        server, _ = ask(url, model="other")
    assert (server.target.model, server.target.context_length) == ("other", None)


def test_a_server_behind_tls(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pem = tmp_path / "server.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", pem, "-out", tmp_path / "c.pem"], check=True, capture_output=True)
    with pem.open("ab") as file:
        file.write((tmp_path / "c.pem").read_bytes())
    with scripted(QUICK, pem) as url:
        with pytest.raises(HeadraceError, match="certificate"):
            ask(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "c.pem"))
        samples, _ = run(url, single(3), ClosedLoop(1))
    assert samples.error == ("",) * 3


def test_no_server_at_all():
    with pytest.raises(HeadraceError, match="no server answers"):
        ask("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://h/?q", "", "http://h\u00e9", "a b"])
def test_addresses_that_are_none(url):
    with pytest.raises(InvalidInput, match="not an address"):
        Address(url)


def test_addresses_hold_no_secrets():
    with pytest.raises(InvalidInput, match="password"):
        Address("http://me:secret@host")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8000", ("localhost", 8000, "", "localhost:8000")),
        ("http://a.b/v1/", ("a.b", 80, "", "a.b")),
        ("https://a.b/api/v1", ("a.b", 443, "/api", "a.b")),
        ("http://[::1]:8000", ("::1", 8000, "", "[::1]:8000")),
    ],
)
def test_addresses(url, expected):
    address = Address(url)
    assert (address.host, address.port, address.prefix, address.authority) == expected
