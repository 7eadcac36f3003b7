"""Readers of public request traces: what was asked of real deployments, when, and which prompts began alike."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.bench.workload.agent_traces import agents
from headrace.bench.workload.blocks import segments_of_blocks, shrunk
from headrace.bench.workload.records import Session, Turn, Workload
from headrace.bench.workload.trace_options import (
    MOST_HASH,
    MOST_TIME,
    MOST_TOKENS,
    TOO_LONG,
    TraceOptions,
    reading,
    workload_of_trace,
)
from headrace.errors import InvalidInput

__all__ = ["TraceOptions", "agents", "azure", "mooncake", "read_trace"]

MOONCAKE_BLOCK = 512  # tokens
AZURE_TIME, AZURE_PROMPT, AZURE_OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


class MooncakeLine(msgspec.Struct):
    """A line of a Mooncake trace: one request.

    Attributes:
        timestamp: When it arrived, milliseconds.
        input_length: Tokens of the prompt.
        output_length: Tokens of the answer.
        hash_ids: Hashes of the prompt's blocks of 512 tokens, the last of which may be incomplete. A hash stands for
            its block and all before it.
    """

    timestamp: Annotated[float, Meta(ge=0, le=MOST_TIME)]
    input_length: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    output_length: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: list[Annotated[int, Meta(ge=0, le=MOST_HASH)]]


class Request(NamedTuple):
    """A request as a trace has it: seconds, tokens, and block hashes if any."""

    at: float
    prompt: int
    output: int
    hashes: list[int]


def read_trace(kind: str, path: Path, options: TraceOptions) -> Workload:
    """The workload of a trace.

    Args:
        kind: ``mooncake``, ``azure`` or ``agents``.
        path: Its file, or for the agents' traces also a folder of them.
        options: How to make it fit.

    Raises:
        InvalidInput: There is no such kind; a file cannot be read, or is no such trace: the message names the place.
    """
    reader = READERS.get(kind)
    if reader is None:
        raise InvalidInput(f"{kind!r} is no kind of trace; write one of {', '.join(READERS)}", field="trace")
    return reader(path, options)


def mooncake(path: Path, options: TraceOptions) -> Workload:
    """A trace in the format of Mooncake (Qin et al., FAST'25): JSON lines, one request each.

    Every request is a session of one turn. Time counts from the first line's. Where a line has fewer hashes than its
    prompt has blocks, the rest of the prompt is shared with no other.

    Raises:
        InvalidInput: As ``read_trace``.
    """
    return _one_turn_each("mooncake", path, options, mooncake_requests(path))


def azure(path: Path, options: TraceOptions) -> Workload:
    """A trace in the format of the Azure LLM inference trace of 2023 (Patel et al., ISCA'24): CSV, one request a row.

    Every request is a session of one turn that shares nothing. Time counts from the first row's.

    Raises:
        InvalidInput: As ``read_trace``.
    """
    return _one_turn_each("azure", path, options, _azure_requests(path))


READERS: dict[str, Callable[[Path, TraceOptions], Workload]] = {"mooncake": mooncake, "azure": azure, "agents": agents}


def _one_turn_each(name: str, path: Path, options: TraceOptions, requests: Iterator[Request]) -> Workload:
    read = list(islice(requests, options.limit))
    prompts = shrunk((request.prompt for request in read), options.shrink).clip(1)
    outputs = shrunk((request.output for request in read), options.shrink).clip(1)
    lengths = zip(prompts.tolist(), outputs.tolist(), strict=True)
    kept = [i for i, (prompt, output) in enumerate(lengths) if options.fits(prompt, output)]
    segments = segments_of_blocks(
        [read[i].hashes for i in kept], prompts[kept], block=MOONCAKE_BLOCK, shrink=options.shrink, scope=""
    )
    sessions = [
        Session(
            (Turn(segments=prompt, output_tokens=output),),
            start=(read[i].at - read[0].at) * options.scale,
        )
        for i, prompt, output in zip(kept, segments, outputs[kept].tolist(), strict=True)
    ]
    return workload_of_trace(name, path, options, sessions, {TOO_LONG: len(read) - len(kept)})


def mooncake_requests(path: Path) -> Iterator[Request]:
    """The requests of a trace in Mooncake's format, in order, as they are.

    Raises:
        InvalidInput: As ``read_trace``.
    """
    decoder = msgspec.json.Decoder(MooncakeLine)
    last = 0.0
    with reading(path), path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.isspace():
                continue
            try:
                line = decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise _at(path, number, f"is no line of a Mooncake trace: {error}") from error
            blocks = -(-line.input_length // MOONCAKE_BLOCK)
            if len(line.hash_ids) > blocks:
                wrong = f"has {len(line.hash_ids)} hash_ids, but {line.input_length} tokens are {blocks} blocks of 512"
                raise _at(path, number, wrong)
            if line.timestamp < last:
                raise _at(path, number, "is earlier than the line before; sort the lines by timestamp")
            last = line.timestamp
            yield Request(line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids)


def _azure_requests(path: Path) -> Iterator[Request]:
    columns: tuple[int, int, int] | None = None
    first = last = None
    for line, row in _csv_rows(path):
        if columns is None:
            columns = _azure_columns(path, line, row)
            continue
        if max(columns) >= len(row):
            raise _at(path, line, f"has {len(row)} columns, too few")
        when, prompt, output = (row[column].strip() for column in columns)
        moment = _moment(path, line, when)
        first, last = first or moment, last or moment
        if (moment.tzinfo is None) != (first.tzinfo is None):
            raise _at(path, line, "has a time zone and the first row none, or the other way round")
        if moment < last:
            raise _at(path, line, f"is earlier than the row before; sort the rows by {AZURE_TIME}")
        last = moment
        lengths = _tokens(path, line, AZURE_PROMPT, prompt), _tokens(path, line, AZURE_OUTPUT, output)
        yield Request((moment - first).total_seconds(), *lengths, [])


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, each with the number of its line."""
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, strict=True)
        try:
            for row in rows:
                if row:
                    yield rows.line_num, row
        except csv.Error as error:
            raise _at(path, rows.line_num, f"is no CSV: {error}") from error


def _azure_columns(path: Path, line: int, header: list[str]) -> tuple[int, int, int]:
    names = [name.strip() for name in header]
    missing = [name for name in (AZURE_TIME, AZURE_PROMPT, AZURE_OUTPUT) if name not in names]
    if missing:
        raise _at(path, line, f"is no head of an Azure trace: the column {missing[0]} is missing")
    return names.index(AZURE_TIME), names.index(AZURE_PROMPT), names.index(AZURE_OUTPUT)


def _moment(path: Path, line: int, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _at(path, line, f"has no {AZURE_TIME} such as 2023-11-16 18:17:03.9799600: {text[:80]!r}") from error


def _tokens(path: Path, line: int, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MOST_TOKENS):
        raise _at(path, line, f"has no {column} from 0 to {MOST_TOKENS}: {text[:80]!r}")
    return int(text)


def _at(path: Path, line: int, message: str) -> InvalidInput:
    return InvalidInput(f"line {line} {message}", field=str(path))
