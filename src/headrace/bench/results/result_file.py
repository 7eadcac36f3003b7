"""Result files: samples as columns and back, and the files that ``--json`` writes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from headrace.bench.results.latency import check_samples
from headrace.bench.results.samples import UNKNOWN, Floats, Ints, Samples
from headrace.bench.results.schema import (
    COMPARISON_SCHEMA,
    RESULT_SCHEMA,
    SWEEPS_SCHEMA,
    Comparison,
    Document,
    Requests,
    Result,
    Round,
    Sweep,
    Sweeps,
    results_of,
)
from headrace.errors import InvalidInput

MICROSECONDS = 1e6
MOST_SECONDS = 1e9  # moments that this format can hold
MOST_TOKENS = 2**53

_Document = TypeVar("_Document", Result, Comparison, Sweeps)
# What a file holds, by its schema, and the command that writes it.
_NOUNS = {RESULT_SCHEMA: "a result", COMPARISON_SCHEMA: "a comparison", SWEEPS_SCHEMA: "a comparison of sweeps"}
_WRITERS = {RESULT_SCHEMA: "bench serve", COMPARISON_SCHEMA: "bench compare", SWEEPS_SCHEMA: "bench compare"}


def to_requests(samples: Samples) -> Requests:
    """The samples as columns, moments rounded to a microsecond."""
    ticks = np.rint(samples.event_times * MICROSECONDS).astype(np.int64)
    steps = (np.diff(ticks, prepend=0) / MICROSECONDS).tolist()
    offsets = samples.event_offsets.tolist()
    return Requests(
        session=samples.session.tolist(),
        turn=samples.turn.tolist(),
        due=np.round(samples.due, 6).tolist(),
        sent=_nullable_moments(samples.sent),
        first=_nullable_moments(samples.first),
        end=_nullable_moments(samples.end),
        gaps=[steps[begin + 1 : end] for begin, end in pairwise(offsets)],
        planned_prompt=_nullable_counts(samples.planned_prompt),
        planned_output=samples.planned_output.tolist(),
        prompt_tokens=_nullable_counts(samples.prompt_tokens),
        output_tokens=_nullable_counts(samples.output_tokens),
        cached_tokens=_nullable_counts(samples.cached_tokens),
        queue=_nullable_moments(samples.queue),
        error=list(samples.error),
    )


def from_requests(requests: Requests) -> Samples:
    """The samples that columns hold.

    Raises:
        InvalidInput: The columns do not describe requests: other lengths, moments that run backwards, numbers that are
            too large. The field is the column.
    """
    _check_columns(requests)
    counts = [0 if first is None else len(gaps) + 1 for first, gaps in zip(requests.first, requests.gaps, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    samples = Samples(
        session=np.array(requests.session, np.int64),
        turn=np.array(requests.turn, np.int64),
        due=np.array(requests.due, np.float64),
        sent=_moments(requests.sent),
        end=_moments(requests.end),
        planned_prompt=_counts(requests.planned_prompt),
        planned_output=np.array(requests.planned_output, np.int64),
        prompt_tokens=_counts(requests.prompt_tokens),
        output_tokens=_counts(requests.output_tokens),
        cached_tokens=_counts(requests.cached_tokens),
        queue=_moments(requests.queue),
        error=tuple(requests.error),
        event_times=_event_times(requests, offsets),
        event_offsets=offsets,
    )
    check_samples(samples)
    return samples


def _event_times(requests: Requests, offsets: Ints) -> Floats:
    """Moments from the first event and the gaps, summed in whole microseconds so that no error adds up."""
    steps = np.zeros(int(offsets[-1]))
    begins = offsets[:-1][np.diff(offsets) > 0]
    later = np.ones(len(steps), bool)
    later[begins] = False
    steps[begins] = [first for first in requests.first if first is not None]
    steps[later] = [gap for gaps in requests.gaps for gap in gaps]
    ticks = np.cumsum(np.rint(steps * MICROSECONDS).astype(np.int64))
    lengths = np.diff(offsets)[np.diff(offsets) > 0]
    before = np.concatenate([[0], ticks])[begins]
    return np.asarray((ticks - np.repeat(before, lengths)) / MICROSECONDS, np.float64)


def _nullable_moments(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in np.round(values, 6).tolist()]


def _nullable_counts(values: Ints) -> list[int | None]:
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _moments(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _counts(values: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)


def _check_columns(requests: Requests) -> None:
    rows = len(requests.due)
    for name in requests.__struct_fields__:
        column: Sequence[object] = getattr(requests, name)
        if len(column) != rows:
            raise InvalidInput(f"has {len(column)} values, where due has {rows}", field=name)
        if name not in {"error", "gaps"} and not all(map(_is_fit, column)):
            raise InvalidInput("holds a count below 0, or a number that is too large", field=name)
    if not all(map(_is_fit, (gap for gaps in requests.gaps for gap in gaps))):
        raise InvalidInput("holds a number that is too large", field="gaps")
    if any(sum(gaps) > MOST_SECONDS for gaps in requests.gaps):
        raise InvalidInput("add up to too much", field="gaps")
    for first, gaps in zip(requests.first, requests.gaps, strict=True):
        if gaps and first is None:
            raise InvalidInput("has gaps where there was no first output", field="gaps")


def _is_fit(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, int):
        return 0 <= value <= MOST_TOKENS
    return isinstance(value, float) and abs(value) <= MOST_SECONDS


def encode(document: Document) -> bytes:
    """The JSON of a result or a comparison."""
    return msgspec.json.encode(document) + b"\n"


def save(document: Document, path: str | os.PathLike[str]) -> None:
    """Write a result or a comparison; the file appears whole, or not at all.

    Raises:
        InvalidInput: It cannot be written there.
    """
    write_whole(Path(path), encode(document))


def write_whole(target: Path, data: bytes) -> None:
    """Write a file under another name, and put it in place when it is complete.

    Raises:
        InvalidInput: It cannot be written there.
    """
    part: Path | None = None
    try:
        if target.exists() and not target.is_file():  # a device or a pipe: nothing to put in its place
            target.write_bytes(data)
            return
        target = target.resolve()  # a link stays one
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            if part is not None:
                part.unlink(missing_ok=True)
        raise InvalidInput(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def load_result(path: str | os.PathLike[str]) -> Result:
    """Read a result.

    Raises:
        InvalidInput: The file is missing or unreadable, is not JSON, holds something else or another version, or what
            it holds cannot be; the message names the file, what is wrong, and where.
    """
    result = _load(path, RESULT_SCHEMA, Result)
    _checked(path, result)
    return result


def load_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Read a comparison; errors as of ``load_result``."""
    return _load_several(path, COMPARISON_SCHEMA, Comparison)


def load_sweeps(path: str | os.PathLike[str]) -> Sweeps:
    """Read sweeps that were compared; errors as of ``load_result``."""
    return _load_several(path, SWEEPS_SCHEMA, Sweeps)


def _load_several(path: str | os.PathLike[str], schema: str, kind: type[_Document]) -> _Document:
    found = _load(path, schema, kind)
    _checked(path, found)
    return found


class _Head(msgspec.Struct):
    schema: str


def _load(path: str | os.PathLike[str], schema: str, kind: type[_Document]) -> _Document:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null character in the path
        raise InvalidInput(f"{os.fspath(path)!r} is not a path: {error}") from error
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema == schema:
            return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path} is not what {_NOUNS[schema]} holds: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    raise InvalidInput(f"{path} {_mismatch(head.schema, schema)}")


def _mismatch(found: str, wanted: str) -> str:
    if found in _NOUNS:
        needed = f"where {_NOUNS[wanted]} is needed; give a file that {_WRITERS[wanted]} --json wrote"
        return f"holds {_NOUNS[found]}, {needed}"
    if found.rpartition("/")[0] == wanted.rpartition("/")[0]:
        return (
            f"has the schema {found[:60]!r}, and this version of headrace reads {wanted!r}; use the one that wrote it"
        )
    return f"has the schema {found[:60]!r}, which is not {_NOUNS[wanted]} of headrace bench"


def _checked(path: str | os.PathLike[str], document: Document) -> None:
    try:
        for result in results_of(document):
            _check_result(result)
    except InvalidInput as error:
        raise InvalidInput(f"{path} holds what cannot be: {error}") from error


def _check_result(result: Result) -> None:
    if result.schema != RESULT_SCHEMA:
        raise InvalidInput(f"must be {RESULT_SCHEMA!r}", field="schema")
    if not result.rounds:
        raise InvalidInput("must hold at least one round", field="rounds")
    if result.plan.devices < 1:
        raise InvalidInput("must be at least 1", field="plan.devices")
    for number, each in enumerate(result.rounds):
        try:
            _check_round(each)
        except InvalidInput as error:
            where = f"rounds[{number}]"
            raise error.renamed(f"{where}.{error.field}" if error.field else where) from error
    for number, point in enumerate(result.search.points if result.search else ()):
        if not 0 <= point.round < len(result.rounds):
            raise InvalidInput("is the number of no round", field=f"search.points[{number}].round")
        if point.rate <= 0:
            raise InvalidInput("must be above 0", field=f"search.points[{number}].rate")
    if result.sweep is not None:
        _check_sweep(result.sweep, len(result.rounds))


def _check_sweep(sweep: Sweep, rounds: int) -> None:
    loads = sweep.loads
    if len(loads) != rounds:
        raise InvalidInput(f"has {len(loads)} values, where there are {rounds} rounds", field="sweep.loads")
    if not all(0 < load <= MOST_TOKENS for load in loads) or any(low >= high for low, high in pairwise(loads)):
        raise InvalidInput("must be above 0 and ascend", field="sweep.loads")


def _check_round(each: Round) -> None:
    begin, close = each.summary.window
    if not 0 <= begin <= close <= MOST_SECONDS:
        raise InvalidInput("must be two ascending moments", field="summary.window")
    try:
        from_requests(each.requests)
    except InvalidInput as error:
        raise error.renamed(f"requests.{error.field}") from error
