"""A search on disk, one JSON object a line: what it was told, everything that was measured, what it found.

    {"record": 1, "settings": {...}, "machine": {...}}
    {"call": "baseline", "result": {...}}
    {"call": "elapsed", "result": 3.1}
    {"call": "evaluate", "genomes": [{...}, ...], "result": [{"layers/0": {"verdict": "ok", "ratios": [...]}}, ...]}
    ...
    {"result": {...}}

A replay makes the same decisions from the same measurements, and so ends at the same genome.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

import msgspec

from headrace.compiler.search.genes import GeneSpace, Genome
from headrace.compiler.search.trials import Baseline, Confirmation, Measurer, Settings, Trial
from headrace.errors import HeadraceError

VERSION = 1
T = TypeVar("T")


class InvalidRecord(HeadraceError):
    """A record cannot be replayed: damaged, or of another program or version."""


class Recorder:
    """A measurer that writes down what another one measures.

    Args:
        measurer: Who measures.
        file: Where to; each line is written at once, so that a search that dies leaves its record.
        header: What belongs to the first line: settings, machine, program.
    """

    def __init__(self, measurer: Measurer, file: TextIO, header: Mapping[str, Any]) -> None:
        self._measurer, self._file = measurer, file
        self._write({"record": VERSION, **header})

    def elapsed(self) -> float:
        """See ``Measurer``."""
        return self._noted({"call": "elapsed"}, self._measurer.elapsed)

    def baseline(self) -> Baseline:
        """See ``Measurer``."""
        return self._noted({"call": "baseline"}, self._measurer.baseline)

    def evaluate(self, genomes: Sequence[Genome]) -> list[dict[str, Trial]]:
        """See ``Measurer``."""
        call = {"call": "evaluate", "genomes": [genome.as_dict() for genome in genomes]}
        return self._noted(call, lambda: self._measurer.evaluate(genomes))

    def confirm(self, genome: Genome) -> Confirmation:
        """See ``Measurer``."""
        return self._noted({"call": "confirm", "genome": genome.as_dict()}, lambda: self._measurer.confirm(genome))

    def close(self, result: Mapping[str, Any]) -> None:
        """Write the last line."""
        self._write({"result": result})

    def _noted(self, call: dict[str, Any], run: Callable[[], T]) -> T:
        try:
            result = run()
        except KeyboardInterrupt:
            self._write({**call, "interrupted": True})
            raise
        self._write({**call, "result": msgspec.to_builtins(result)})
        return result

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


class Replayer:
    """A measurer that repeats what a record says.

    Args:
        lines: The record's, without the first.
        space: The program's genes.

    Raises:
        InvalidRecord: From each method, if the record says something else than what is asked.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]], space: GeneSpace) -> None:
        self._lines: Iterator[Mapping[str, Any]] = iter(lines)
        self._space = space

    def elapsed(self) -> float:
        """See ``Measurer``."""
        return self._next({"call": "elapsed"}, float)

    def baseline(self) -> Baseline:
        """See ``Measurer``."""
        return self._next({"call": "baseline"}, Baseline)

    def evaluate(self, genomes: Sequence[Genome]) -> list[dict[str, Trial]]:
        """See ``Measurer``."""
        asked = {"call": "evaluate", "genomes": [genome.as_dict() for genome in genomes]}
        return self._next(asked, list[dict[str, Trial]])

    def confirm(self, genome: Genome) -> Confirmation:
        """See ``Measurer``."""
        return self._next({"call": "confirm", "genome": genome.as_dict()}, Confirmation)

    def _next(self, asked: dict[str, Any], kind: type[T]) -> T:
        line = dict(next(self._lines, {}))
        result, interrupted = line.pop("result", None), line.pop("interrupted", False)
        if line != asked:
            raise InvalidRecord(
                f"the record does not go on with {asked['call']!r} of these genomes: it is of another program, or of "
                "another version of the search"
            )
        if interrupted:
            raise KeyboardInterrupt
        try:
            return msgspec.convert(result, kind)
        except msgspec.ValidationError as error:
            raise InvalidRecord(f"the record holds no such result: {error}") from None


def read_record(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a record, and the others up to the result.

    Raises:
        InvalidRecord: It is none, or of another version.
    """
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:
            raise InvalidRecord(f"line {number} of the record is not JSON") from None
        if not isinstance(found, dict):
            raise InvalidRecord(f"line {number} of the record is no JSON object")
        lines.append(found)
    if not lines or lines[0].get("record") != VERSION:
        raise InvalidRecord(f"this is no record of a search, or of another version than {VERSION}")
    return lines[0], [line for line in lines[1:] if "call" in line]


def settings_of(header: Mapping[str, Any]) -> Settings:
    """The settings that a record's first line holds.

    Raises:
        InvalidRecord: There are none.
    """
    try:
        return msgspec.convert(header.get("settings"), Settings)
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"the record's settings cannot be read: {error}") from None
