"""Grammars that crash, hang or fill memory, tried in a process of their own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from headrace.text import Tokenizer
from headrace.text.grammar import GrammarCheck, GrammarEngine, json_object_source, json_schema_source
from headrace.text.grammar.sources import HEAD

GOOD = f'{HEAD}start: "a" | "b"'
DEEP = HEAD + "start: r0\n" + "".join(f'r{n}: "a" r{n + 1} "b" | "c"\n' for n in range(200_000)) + 'r200000: "c"\n'


@pytest.fixture(scope="module")
def check(byte_level: Tokenizer) -> Iterator[GrammarCheck]:
    with GrammarCheck(byte_level) as check:
        yield check


def test_a_good_grammar_passes(check: GrammarCheck):
    assert check.check(GOOD) is None
    assert check.check(json_object_source()) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("start: missing", "does not compile"),
        ("start: /(/", "does not compile"),
        ("start: start", "admits no text"),
        ("start: T\nT: /a/ & /b/", "admits no text"),
        ('start: "a" T\nT: /bc/ & /bd/', "leads to a place"),
        ("start: T\nT: /[a-z ]*a[a-z ]{300}/ & /[a-z ]*b[a-z ]{301}/", "too complex"),
    ],
)
def test_a_bad_grammar_has_a_reason(check: GrammarCheck, body: str, reason: str):
    found = check.check(HEAD + body)
    assert found is not None
    assert reason in found


def test_a_crash_is_a_reason_and_the_next_grammar_passes(check: GrammarCheck):
    reason = check.check(DEEP)
    assert reason is not None
    assert check.check(GOOD + ' | "c"') is None


def test_time_is_limited(byte_level: Tokenizer):
    with GrammarCheck(byte_level, seconds=1e-4) as check:
        reason = check.check(json_object_source())
        assert reason is not None
        assert "longer than" in reason


def test_memory_is_limited(byte_level: Tokenizer):
    with GrammarCheck(byte_level, memory=1 << 20, seconds=60) as check:
        reason = check.check(DEEP)
        assert reason is not None
        assert "memory" in reason


def test_what_is_known_is_not_tried_again(byte_level: Tokenizer):
    check = GrammarCheck(byte_level)
    assert check.check(GOOD) is None
    check.close()
    assert check.check(GOOD) is None
    assert check._child is None


def test_threads_share_a_check(check: GrammarCheck):
    found: dict[int, str | None] = {}

    def ask(n: int) -> None:
        found[n] = check.check(f'{HEAD}start: "{n}"' if n % 3 else f"{HEAD}start: missing{n}")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: reason is None for n, reason in found.items()} == {n: n % 3 != 0 for n in range(12)}


def test_a_killed_child_is_replaced(check: GrammarCheck):
    assert check.check(f'{HEAD}start: "x"') is None
    assert check._child is not None
    check._child.kill()
    check._child.wait()
    assert check.check(f'{HEAD}start: "y"') is None


def test_what_is_known_does_not_wait_for_what_is_tried(byte_level: Tokenizer):
    with GrammarCheck(byte_level) as check:
        assert check.check(GOOD) is None
        assert check._child is not None
        check._child.send_signal(signal.SIGSTOP)
        busy = threading.Thread(target=check.check, args=(f'{HEAD}start: "new"',))
        busy.start()
        try:
            assert check.knows(GOOD)
            assert check.check(GOOD) is None
            assert busy.is_alive()
        finally:
            check._child.send_signal(signal.SIGCONT)
            busy.join()


def test_a_child_that_is_killed_is_no_fault_of_the_grammar(byte_level: Tokenizer):
    source, found = f'{HEAD}start: "killed"', []
    with GrammarCheck(byte_level) as check:
        assert check.check(GOOD) is None
        child = check._child
        assert child is not None
        child.send_signal(signal.SIGSTOP)
        asking = threading.Thread(target=lambda: found.append(check.check(source)))
        asking.start()
        asking.join(0.5)  # it has asked by then, and has no answer
        child.kill()
        asking.join()
        assert found == [None]


def test_a_password_is_not_too_complex(smollm2_tokenizer: Tokenizer):
    password = r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[!@#$%^&*]).{8,64}$"
    source = json_schema_source({"type": "string", "pattern": password}, field="")
    with GrammarCheck(smollm2_tokenizer) as check:
        assert check.check(source) is None
    matcher = GrammarEngine(smollm2_tokenizer).compile(source).matcher()
    for token in smollm2_tokenizer.encode('"Passw0rd!'):
        matcher.mask()
        matcher.accept(token)
    matcher.mask()


def test_what_becomes_too_complex_behind_the_first_token_is_refused(smollm2_tokenizer: Tokenizer):
    members = {f"p{n}": {} for n in range(1990)}
    source = json_schema_source({"type": "object", "properties": members}, field="")
    with GrammarCheck(smollm2_tokenizer) as check:
        reason = check.check(source)
    assert reason is not None
    assert "too complex" in reason
