"""Prefixes that outlive the server, and what happens to a server whose disk does not work."""

import os
import random
import shutil
import signal
import threading

import httpx
import psutil
import pytest
from servers import NAME, running

from headrace.memory.tiers.files import PART

pytestmark = pytest.mark.model
TOKENS, SHORT = 1200, 208
FLAGS = ("--kv-memory", "512MiB", "--max-running", "4", "--context-length", "2048")


def ask(server, seed, tokens=TOKENS, **more):
    prompt = random.Random(seed).choices(range(100, 40_000), k=tokens)
    body = {"model": NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    answer = server.http.post("/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_restarted_server_finds_what_the_last_one_has_computed(smollm2, tmp_path):
    disk = tmp_path / "disk"
    flags = (*FLAGS, "--disk-tier", str(disk))
    with running(smollm2, tmp_path, *flags) as server:
        first, cached = ask(server, 1)
        assert cached == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    files = [path for path in disk.rglob("*") if path.is_file()]
    assert files
    with running(smollm2, tmp_path, *flags) as server:
        assert ask(server, 1) == (first, TOKENS - 16)  # the last token must be computed, and pages are whole
        assert ask(server, 1, cache_salt="other")[1] == 0
        assert ask(server, 2)[1] == 0
        server.assert_comes_to_rest()


def test_spoilt_files_are_computed_again(smollm2, tmp_path):
    disk = tmp_path / "disk"
    flags = (*FLAGS, "--disk-tier", str(disk))
    with running(smollm2, tmp_path, *flags) as server:
        first, _ = ask(server, 1)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
    for path in disk.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for at in range(len(data) // 3, len(data), 5_000):
                data[at] ^= 64
            path.write_bytes(data)
    with running(smollm2, tmp_path, *flags) as server:
        text, cached = ask(server, 1)
        assert (text, cached < TOKENS // 2) == (first, True)


def test_a_folder_that_vanishes_costs_no_request(smollm2, tmp_path):
    disk = tmp_path / "disk"
    with running(smollm2, tmp_path, *FLAGS, "--disk-tier", str(disk)) as server:
        shutil.rmtree(disk)
        disk.write_text("no folder")
        texts = [ask(server, seed, 300)[0] for seed in (1, 2, 1)]
        assert texts[0] == texts[2]
        server.assert_comes_to_rest()


def files_of(disk, *, parts):
    return [path for path in disk.rglob("*") if path.is_file() and (path.suffix == PART) == parts]


def ask_and_kill(server, disk, victims):
    """Ask new prompts, and kill processes as soon as a file is being written; what is left of such files.

    They are made to look as if that were long ago.
    """

    def ask_on():
        for seed in range(10, 40):
            try:
                ask(server, seed, SHORT)
            except (AssertionError, httpx.TransportError):  # it is dead
                return

    asking = threading.Thread(target=ask_on)
    asking.start()
    server.wait(lambda: files_of(disk, parts=True), pause=0.001)
    for process in victims:
        process.kill()
    asking.join(30)
    assert not asking.is_alive()
    parts = files_of(disk, parts=True)
    for part in parts:
        os.utime(part, (0, 0))
    return parts


@pytest.mark.parametrize("whole", [False, True], ids=["replica", "server"])
def test_a_kill_while_files_are_written_costs_no_answer(smollm2, tmp_path, server, whole):
    """Answers are those of a server without tiers; what was written before is found, of the rest nothing is left."""
    disk = tmp_path / "disk"
    flags = (*FLAGS[:-1], "256", "--disk-tier", str(disk))  # a short context: it starts sooner

    def assert_right(again):
        answers = [ask(again, seed, SHORT) for seed in (1, 10)]
        assert [text for text, _ in answers] == [ask(server, seed, SHORT)[0] for seed in (1, 10)]
        assert answers[0][1] == SHORT - 16
        assert again.state()["state"]["tiers"]["disk"]["errors"] == 0
        assert not any(part.exists() for part in parts)
        again.assert_comes_to_rest()

    with running(smollm2, tmp_path, *flags) as first:
        ask(first, 1, SHORT)
        first.wait(lambda: files_of(disk, parts=False) and not files_of(disk, parts=True))
        replica = first.replica()
        parts = ask_and_kill(first, disk, [psutil.Process(first.process.pid), replica] if whole else [replica])
        if not whole:
            first.wait(lambda: first.is_ready() and first.replica() != replica)
            assert_right(first)
    if whole:
        with running(smollm2, tmp_path, *flags) as second:
            assert_right(second)


def test_what_the_arena_gives_up_comes_back_from_host_memory(smollm2, tmp_path):
    """The arena holds two such prompts, of which four come round and round.

    At most an eighth of the arena waits to be stored at a time, so what comes back may be a part, and nothing does as
    long as the engine expects that computing it is faster.
    """
    small = ("--kv-memory", "128MiB", *FLAGS[2:])
    with running(smollm2, tmp_path, *small, "--host-tier", "512MiB") as server:
        texts = {seed: ask(server, seed)[0] for seed in (1, 2, 3, 4)}
        for _ in range(5):
            assert {seed: ask(server, seed)[0] for seed in texts} == texts
            if server.metrics()["headrace_prefix_tier_tokens_total"]:
                break
        else:
            pytest.fail("nothing came back")
        assert server.state()["state"]["tiers"]["host"]["nbytes"] > 0
        server.assert_comes_to_rest()
