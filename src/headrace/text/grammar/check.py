"""Grammars are tried in a process of their own first: one that crashes it, hangs or fills memory has hurt nobody.

gateway                                   child
-------                                   -----
check(source) ── source as JSON ────────▶ compile, masks of some tokens
              ◀── null, or what is wrong ─┘
              ◀── end of file: dead of its alarm, a crash or lack of memory; the next check starts another
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.text.grammar.engine import COMPILE_STACK, LIMITS
from headrace.text.grammar.errors import GrammarError
from headrace.text.grammar.vocabulary import spelled_tokens
from headrace.text.tokenizer import Tokenizer

SCRIPT = Path(__file__).with_name("check_child.py")
KEPT = 4096
_KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}


class GrammarCheck:
    """Tries grammars for one model. Safe to use from several threads.

    One grammar is tried at a time; what is known of others does not wait for it.

    Args:
        tokenizer: The model's tokenizer.
        vocab_size: Rows of the model's output layer; None: as many as the tokenizer has ids.
        seconds: How long compiling and the first masks may take.
        memory: Bytes that it may take beyond what the process has at rest; on Linux.

    Raises:
        GrammarError: The model has no token that ends a text.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int | None = None, *, seconds: float = 2.0, memory: int = 1 << 30
    ) -> None:
        self._seconds = seconds
        self._memory = memory
        spelled, special, ends = spelled_tokens(tokenizer, tokenizer.vocab_size if vocab_size is None else vocab_size)
        tokens = [text.decode("latin-1") for text in spelled]
        self._greeting = json.dumps({"tokens": tokens, "special": special, "ends": ends, "limits": LIMITS})
        self._child: subprocess.Popen[str] | None = None
        self._trying = threading.Lock()  # held while the child works
        self._lock = threading.Lock()  # of what is known
        self._known: OrderedDict[bytes, str] = OrderedDict()  # empty: nothing is wrong

    def check(self, source: str) -> str | None:
        """What is wrong with a grammar, to follow "the grammar"; None: it can be used.

        Args:
            source: What the functions of ``sources.py`` return.

        Raises:
            GrammarError: The process for it does not start.
        """
        key = _key(source)
        reason = self._verdict(key)
        if reason is None:
            with self._trying:
                reason = self._verdict(key)  # of whoever tried it in the meantime
                if reason is None:
                    reason = self._try(source) or ""
                    self._keep(key, reason)
        return reason or None

    def knows(self, source: str) -> bool:
        """Whether a grammar was tried lately, so that ``check`` answers at once."""
        return self._verdict(_key(source)) is not None

    def close(self) -> None:
        """End the process, if there is one."""
        with self._trying:
            self._bury()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verdict(self, key: bytes) -> str | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _keep(self, key: bytes, reason: str) -> None:
        with self._lock:
            self._known[key] = reason
            if len(self._known) > KEPT:
                self._known.popitem(last=False)

    def _try(self, source: str) -> str | None:
        for _ in range(2):
            answer = self._ask(source)
            if answer:
                reason: str | None = json.loads(answer)
                return reason
            code = self._bury()
            if code not in _KILLED:  # by whom else is no fault of the grammar, once
                break
        if code == -signal.SIGALRM:
            return f"takes longer than {self._seconds:g} s to compile; use a simpler one"
        return "needs too much memory, or nests too deep, to be compiled; use a simpler one"

    def _ask(self, source: str) -> str:
        """The child's answer; empty if it died of the question."""
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(source) + "\n")
            child.stdin.flush()
            return child.stdout.readline()
        except OSError:
            return ""

    def _started(self) -> subprocess.Popen[str]:
        """The child, waiting for a source."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._bury()
        limits = [str(self._seconds), str(self._memory), str(COMPILE_STACK)]
        child = self._child = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-P", str(SCRIPT), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(OSError):
            child.stdin.write(self._greeting + "\n")
            child.stdin.flush()
        if child.stdout.readline() != "ready\n":
            self._bury()
            raise GrammarError("the process in which grammars are tried does not start")
        return child

    def _bury(self) -> int | None:
        """End the child; returns what it died of, if it did by itself."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        child.stdout.close()
        try:
            return child.wait(1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


def _key(source: str) -> bytes:
    return hashlib.blake2b(source.encode(), digest_size=16).digest()
