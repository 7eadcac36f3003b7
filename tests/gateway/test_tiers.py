"""Prefixes that outlive the server, and what happens to a server whose disk does not work."""

import random
import shutil
import signal

import pytest
from servers import NAME, running

pytestmark = pytest.mark.model
TOKENS = 1200
FLAGS = ("--kv-memory", "512MiB", "--max-running", "4", "--context-length", "2048")


def ask(server, seed, **more):
    prompt = random.Random(seed).choices(range(100, 40_000), k=TOKENS)
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
        texts = [ask(server, seed)[0] for seed in (1, 2, 1)]
        assert texts[0] == texts[2]
        server.assert_comes_to_rest()


def test_what_the_arena_gives_up_comes_back_from_host_memory(smollm2, tmp_path):
    """The arena holds two such prompts; the first comes again when three others have driven it out.

    At most an eighth of the arena waits to be stored at a time, so what comes back here may be a part.
    """
    small = ("--kv-memory", "128MiB", *FLAGS[2:])
    with running(smollm2, tmp_path, *small, "--host-tier", "512MiB") as server:
        texts = [ask(server, seed)[0] for seed in (1, 2, 3, 4)]
        again, cached = ask(server, 1)
        assert again == texts[0]
        assert cached >= 256
        assert server.state()["state"]["tiers"]["host"]["nbytes"] > 0
        assert "headrace_prefix_tier_tokens_total 0.0" not in server.http.get("/metrics").text
        server.assert_comes_to_rest()
