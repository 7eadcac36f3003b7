"""Traces of coding agents: sessions of dozens of turns over a long prompt that grows."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from headrace.bench.workload.blocks import segments_of_blocks, shrunk
from headrace.bench.workload.records import Session, Turn, Workload
from headrace.bench.workload.trace_options import (
    AFTER_TOO_LONG,
    MOST_HASH,
    MOST_TIME,
    MOST_TOKENS,
    TOO_LONG,
    TraceOptions,
    reading,
    workload_of_trace,
)
from headrace.errors import InvalidInput

Seconds = Annotated[float, Meta(ge=0, le=MOST_TIME)]
TokenCount = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class Call(msgspec.Struct, tag_field="type", tag="n"):
    """A request of an agent.

    Attributes:
        t: When it was sent, seconds from its session's start.
        prompt_tokens: Tokens of the whole prompt.
        output_tokens: Tokens of the answer.
        hash_ids: Hashes of the prompt's complete blocks; what is left at its end has none.
        api_time: Seconds until the answer's end, where known.
        think_time: Seconds from the end of the answer before, where known.
    """

    t: Seconds
    prompt_tokens: TokenCount = msgspec.field(name="in")
    output_tokens: TokenCount = msgspec.field(name="out")
    hash_ids: list[Annotated[int, Meta(ge=0, le=MOST_HASH)]]
    api_time: Seconds | None = None
    think_time: Seconds | None = None


class StreamedCall(Call, tag_field="type", tag="s"):
    """A request whose answer was streamed."""


class Subagent(msgspec.Struct, tag_field="type", tag="subagent"):
    """An agent that another one started. Its times count from its own start.

    Attributes:
        t: When it started, seconds from the start of the session that started it.
        requests: What it asked.
    """

    t: Seconds
    requests: list[Call | StreamedCall | Subagent]


class AgentFile(msgspec.Struct):
    """One user's session, with the agents that it started.

    Attributes:
        id: Its name.
        block_size: Tokens of a block.
        requests: What it asked, in order.
        hash_id_scope: Hashes of two files are unrelated.
    """

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    block_size: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    requests: list[Call | StreamedCall | Subagent]
    hash_id_scope: Literal["local"] = "local"


class Thread(NamedTuple):
    """The calls of one agent; ``begin`` is where their times count from."""

    begin: float
    calls: list[Call]


def agents(path: Path, options: TraceOptions) -> Workload:
    """Traces of coding agents in the format of kv-cache-tester: JSON, one user a file, perhaps compressed by gzip.

    Each agent is a session: the user's own, which begins at 0 or a little later, and every subagent, which begins when
    it was started. A turn gives its whole prompt; the hashes say how much of it is the turn before's. Subagents number
    their blocks in the same space as the agent that started them (several share their first ones with each other), so
    keys hold the file's id alone. Tokens after the last complete block have no hash: no other turn shares them.

    A think time is the trace's where the end of the answer before is known. Where it is not, the trace counts from the
    last end that is, which may lie several requests back; so there it is the time between the two requests, which
    includes the unknown answer's. A session ends before its first turn that is longer than the context.

    Args:
        path: A file, or a folder, of which all files ``*.json.gz`` and ``*.json`` are read, by name.
        options: How to make it fit; ``limit`` counts files.

    Raises:
        InvalidInput: A file cannot be read, or is no such trace, or two have the same id.
    """
    sessions: list[Session] = []
    skipped = {TOO_LONG: 0, AFTER_TOO_LONG: 0}
    seen: dict[str, Path] = {}
    for file in _files(path)[: options.limit]:
        content = _read(file)
        if content.id in seen:
            raise InvalidInput(
                f"has the id {content.id!r} of {seen[content.id].name}; keep one of them", field=str(file)
            )
        seen[content.id] = file
        sessions += _sessions(content, options, skipped)
    return workload_of_trace("agents", path, options, sessions, skipped)


def agent_calls(path: Path) -> Iterator[tuple[AgentFile, list[tuple[float, Call]]]]:
    """Each file of agents' traces, with the calls of all its agents in order of time, seconds from the session's start.

    Raises:
        InvalidInput: As ``agents``.
    """
    for file in _files(path):
        content = _read(file)
        calls = [(thread.begin + call.t, call) for thread in _threads(content.requests, 0.0) for call in thread.calls]
        yield content, sorted(calls, key=lambda timed: timed[0])


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    with reading(path):
        files = sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))
    if not files:
        raise InvalidInput("this folder holds no file *.json.gz or *.json", field=str(path))
    return files


def _read(path: Path) -> AgentFile:
    with reading(path):
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    try:
        return msgspec.json.decode(text, type=AgentFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no trace of an agent: {error}", field=str(path)) from error


def _threads(requests: list[Call | StreamedCall | Subagent], begin: float) -> Iterator[Thread]:
    """The agent's own calls first, then those of its subagents, in order."""
    yield Thread(begin, [request for request in requests if isinstance(request, Call)])
    for request in requests:
        if isinstance(request, Subagent):
            yield from _threads(request.requests, begin + request.t)


def _sessions(content: AgentFile, options: TraceOptions, skipped: dict[str, int]) -> Iterator[Session]:
    kept: list[tuple[Thread, list[int], list[int]]] = []
    for thread in _threads(content.requests, 0.0):
        prompts = shrunk((call.prompt_tokens for call in thread.calls), options.shrink).clip(1).tolist()
        outputs = shrunk((call.output_tokens for call in thread.calls), options.shrink).clip(1).tolist()
        fitting = [options.fits(*lengths) for lengths in zip(prompts, outputs, strict=True)]
        n = fitting.index(False) if False in fitting else len(fitting)
        skipped[TOO_LONG] += n < len(fitting)
        skipped[AFTER_TOO_LONG] += max(len(fitting) - n - 1, 0)
        if n:
            kept.append((Thread(thread.begin, thread.calls[:n]), prompts[:n], outputs[:n]))
    segments = iter(
        segments_of_blocks(
            [call.hash_ids for thread, _, _ in kept for call in thread.calls],
            shrunk([length for _, prompts, _ in kept for length in prompts], 1),
            block=content.block_size,
            shrink=options.shrink,
            scope=f"{content.id} ",
        )
    )
    for thread, _, outputs in kept:
        turns = [
            Turn(segments=next(segments), output_tokens=output, think=_think(thread.calls, i) * options.scale)
            for i, output in enumerate(outputs)
        ]
        yield Session(tuple(turns), start=(thread.begin + thread.calls[0].t) * options.scale)


def _think(calls: list[Call], i: int) -> float:
    if i == 0:
        return 0.0
    before, call = calls[i - 1], calls[i]
    if before.api_time is not None and call.think_time is not None:
        return call.think_time
    return max(call.t - before.t - (before.api_time or 0), 0.0)
