"""Traces as a prefix cache sees them: pages of prompts and answers, and when they were asked for."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.bench.workload.agent_traces import agent_calls
from headrace.bench.workload.traces import MOONCAKE_BLOCK, mooncake_requests
from headrace.errors import InvalidInput
from headrace.memory.commands import IntArray


class Asked(NamedTuple):
    """A request.

    Attributes:
        at: Seconds.
        tokens: Tokens of its prompt.
        pages: int32, the whole pages of prompt and answer: equal numbers hold equal tokens behind equal prefixes.
        prompt_pages: How many of them are the prompt's.
    """

    at: float
    tokens: int
    pages: IntArray
    prompt_pages: int


class CacheTrace(NamedTuple):
    """Requests in order.

    Attributes:
        name: Of the file or folder.
        page_tokens: Tokens of a page, the trace's block.
        asked: The requests.
        distinct: Number of different pages.
    """

    name: str
    page_tokens: int
    asked: list[Asked]
    distinct: int


class _Request(NamedTuple):
    at: float
    prompt: int
    output: int
    blocks: Sequence[Hashable]


def read_cache_trace(path: Path, *, active: int = 14, seed: int = 0) -> CacheTrace:
    """Read a trace: JSON lines in Mooncake's format, or a file or folder of agents' sessions.

    Sessions of agents are put on one time line as a Poisson process.

    Args:
        path: The file or folder.
        active: Sessions of agents that are under way at once, on average.
        seed: Of their order and starts.

    Raises:
        InvalidInput: It is no such trace.
    """
    if path.suffix == ".jsonl":
        requests = [_Request(r.at, r.prompt, r.output, r.hashes) for r in mooncake_requests(path)]
        return _of_blocks(path.name, requests, MOONCAKE_BLOCK)
    requests, block = _merged(path, active, seed)
    return _of_blocks(path.name, requests, block)


def _merged(path: Path, active: int, seed: int) -> tuple[list[_Request], int]:
    sessions: list[list[_Request]] = []
    blocks: set[int] = set()
    for content, calls in agent_calls(path):
        blocks.add(content.block_size)
        sessions.append(
            [
                _Request(at, call.prompt_tokens, call.output_tokens, [(content.id, h) for h in call.hash_ids])
                for at, call in calls
            ]
        )
    if len(blocks) != 1:
        raise InvalidInput(f"has blocks of {sorted(blocks)} tokens; take files of one size", field=str(path))
    rng = random.Random(seed)
    rng.shuffle(sessions)
    gap = sum(session[-1].at for session in sessions if session) / active / len(sessions)
    start, merged = 0.0, []
    for session in sessions:
        start += rng.expovariate(1 / gap) if gap else 0.0
        merged += [request._replace(at=start + request.at) for request in session]
    return sorted(merged, key=lambda request: request.at), blocks.pop()


def _of_blocks(name: str, requests: list[_Request], block: int) -> CacheTrace:
    numbers: dict[Hashable, int] = {}
    asked = []
    for n, (request, answer) in enumerate(zip(requests, _answers(requests, block), strict=True)):
        whole = min(request.prompt // block, len(request.blocks))
        count = (request.prompt + request.output) // block - whole
        behind = [("answer", n, k) for k in range(count)] if answer is None else answer
        pages = [numbers.setdefault(page, len(numbers)) for page in (*request.blocks[:whole], *behind)]
        asked.append(Asked(request.at, request.prompt, np.array(pages, np.int32), whole))
    return CacheTrace(name, block, asked, len(numbers))


def _answers(requests: list[_Request], block: int) -> Iterator[Sequence[Hashable] | None]:
    """The blocks of each answer, if a later request goes on from there; else None: nobody shares them.

    A request goes on from the last earlier one whose whole blocks it begins with, the longest such prefix of at least
    two blocks, if nobody has gone on from that yet and its prompt has room for both.
    """
    waiting: dict[Hashable, list[int]] = defaultdict(list)  # last whole block -> requests that end with it
    answers: list[Sequence[Hashable] | None] = [None] * len(requests)
    for n, request in enumerate(requests):
        before = _goes_on_from(requests, waiting, request)
        if before is not None:
            begin = requests[before].prompt // block
            end = (requests[before].prompt + requests[before].output) // block
            answers[before] = request.blocks[begin:end]
        whole = request.prompt // block
        if 0 < whole <= len(request.blocks):
            waiting[request.blocks[whole - 1]].append(n)
    return iter(answers)


def _goes_on_from(requests: list[_Request], waiting: dict[Hashable, list[int]], request: _Request) -> int | None:
    for block in reversed(request.blocks[1 : len(request.blocks) - 1]):
        found = waiting.get(block, [])
        for k in range(len(found) - 1, -1, -1):
            before = requests[found[k]]
            if before.prompt + before.output <= request.prompt:
                return found.pop(k)
    return None
