"""The process in which grammars are tried. Started by ``check.py`` as a script, without the package.

    check_child.py SECONDS BYTES STACK

The first line of its input is the vocabulary, every other a source, each as JSON; the answer to a source is a line with
null or what is wrong. What takes longer than SECONDS ends the process by its alarm, what takes more than BYTES by an
abort.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import threading
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

NOISE = "<non-verbose/>"
# Most grammars that become too complex or lead nowhere do so within a few tokens.
TRIED_TEXTS = 6
TRIED_TOKENS = 8


class Vocabulary:
    """What the library reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, message: dict[str, Any]) -> None:
        self.tokens = [text.encode("latin-1") for text in message["tokens"]]
        self.special_token_ids = message["special"]
        self.eos_token_id = message["ends"][0]

    def __call__(self, text: str) -> list[int]:
        """Never asked for."""
        raise NotImplementedError


def limit_memory(size: int) -> None:
    """Let the process have ``size`` bytes more than it has; where the system can say what that is."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
    except OSError:
        return
    limit = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def tried(tokens: LLTokenizer, limits: LLParserLimits, source: str, words: int) -> str | None:
    """What is wrong with a grammar; None: it compiles, and random texts can begin."""
    matcher = LLMatcher(tokens, source, log_level=0, limits=limits)
    if matcher.is_error():
        return f"does not compile: {matcher.get_error()[:2000].replace(NOISE, '').strip()}"
    draw = random.Random(0)
    return next(filter(None, (begun(matcher.deep_copy(), draw, words) for _ in range(TRIED_TEXTS))), None)


def begun(matcher: LLMatcher, draw: random.Random, words: int) -> str | None:
    """What is wrong with the beginning of a random text."""
    mask = np.zeros(words, np.uint32)
    for taken in range(TRIED_TOKENS):
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        error = matcher.get_error()[:200].replace(NOISE, "").strip()
        if "NoExtension" in error or not mask.any():
            return "leads to a place from which no text goes on" if taken else "admits no text"
        if error:
            return f"is too complex: {error}"
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not matcher.consume_token(int(draw.choice(allowed))) or matcher.is_stopped():
            break
    return None


def main() -> None:
    """Answer until the input ends."""
    seconds, size, stack = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    message = json.loads(sys.stdin.readline())
    vocabulary = Vocabulary(message)
    tokens = LLTokenizer(vocabulary, eos_token=message["ends"])  # type: ignore[arg-type]
    limits = LLParserLimits(**message["limits"], verbose_errors=False)
    words = -(-len(vocabulary.tokens) // 32)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    threading.stack_size(stack)
    limit_memory(size + stack)
    print("ready", flush=True)
    for line in sys.stdin:
        source, answer = json.loads(line), [None]
        signal.setitimer(signal.ITIMER_REAL, seconds)

        def work(source: str = source, answer: list[str | None] = answer) -> None:  # type: ignore[assignment]
            answer[0] = tried(tokens, limits, source, words)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer[0]), flush=True)


if __name__ == "__main__":
    main()
