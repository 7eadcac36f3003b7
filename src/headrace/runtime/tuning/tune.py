"""``tune``: search for the schedule that runs a model fastest on this machine, and keep it for the next start."""

from __future__ import annotations

import datetime
import io
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec

import headrace
from headrace.compiler.build import driver_source
from headrace.compiler.native.build import Builder
from headrace.compiler.native.cores import default_threads, usable_cpus
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.search.bound import Rates, Workload
from headrace.compiler.search.choices import gene_space
from headrace.compiler.search.database import Entry, Key, TuningDatabase
from headrace.compiler.search.genes import GeneSpace, Genome
from headrace.compiler.search.genetic import Search
from headrace.compiler.search.record import InvalidRecord, Recorder, Replayer, read_record, settings_of
from headrace.compiler.search.trials import Measurer, Progress, Settings
from headrace.errors import InvalidInput
from headrace.models.cache import cache_folder
from headrace.models.checkpoint import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.runtime.artifacts import open_prepared, program_key, tuned_genome, tuning_key
from headrace.runtime.compile import PreparedModel, schedule_model
from headrace.runtime.kept_files import keep
from headrace.runtime.loaded_model import library_name
from headrace.runtime.state_layout import PAGE_TOKENS
from headrace.runtime.tuning.child import Opening
from headrace.runtime.tuning.loads import measured_repeats, workloads
from headrace.runtime.tuning.measurer import NativeMeasurer
from headrace.runtime.tuning.process import TrialProcess
from headrace.runtime.tuning.report import TuneReport, summary

PURPOSES = {
    "balanced": (0.25, 0.25, 0.25, 0.25),
    "decode": (0.3, 0.3, 0.3, 0.1),
    "prefill": (0.1, 0.1, 0.1, 0.7),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to tune.

    Attributes:
        seconds: What all of it may take.
        purpose: One of ``PURPOSES``: what counts how much.
        threads: Threads that compute; None is one a core.
        seed: Of all chance in the search.
        record: Where to write the search; None: into the cache.
    """

    seconds: float = 240.0
    purpose: str = "balanced"
    threads: int | None = None
    seed: int = 0
    record: Path | None = None

    def __post_init__(self) -> None:
        if self.purpose not in PURPOSES:
            raise InvalidInput(f"must be one of {', '.join(PURPOSES)}, not {self.purpose!r}", field="for")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise InvalidInput(f"must be a positive number, got {self.seconds}", field="seconds")
        cores = len(usable_cpus())
        if self.threads is not None and not 1 <= self.threads <= cores:
            raise InvalidInput(f"must be from 1 to {cores}, the processors here, got {self.threads}", field="threads")


# Called with what is done, and how far the search is.
Report = Callable[[str, Progress | None], None]


def tune(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    recipe: Recipe,
    options: TuneOptions,
    measure_rates: Callable[[], Rates],
    report: Report = lambda what, progress: None,
) -> TuneReport:
    """Search, and keep what is found.

    Args:
        checkpoint: The model.
        spec: Its dimensions.
        recipe: The numbers that it computes with; no choice changes them.
        options: How.
        measure_rates: What this machine can do at most.
        report: Called with what is done next, and after each generation.

    Raises:
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
        ToolchainError: There is no C compiler, or it fails.
        TuningError: The default program does not run, or differs from the interpreter.
    """
    begin = time.monotonic()
    builder = Builder()
    rates = measure_rates()
    prepared, path = open_prepared(checkpoint, spec, recipe, lambda what: report(what, None))
    space = gene_space(prepared.program)
    key = tuning_key(program_key(checkpoint, spec, recipe), options.threads)
    loads, names = workloads(spec.context_length)
    with ExitStack() as stack:
        if not path.exists():  # the cache cannot be written
            path = _elsewhere(stack, prepared)
        repeats = measured_repeats(prepared)
        opening = _opening(checkpoint, spec, prepared, path, builder, options, loads, repeats)
        process = stack.enter_context(closing(TrialProcess(opening)))
        weights = PURPOSES[options.purpose]
        library = library_name(spec, recipe)
        bound = replace(rates, cache=max(cpu_features().cache_bytes(level) for level in (2, 3)))
        measurer = NativeMeasurer(
            prepared, space, process, builder, loads, names, bound, weights, repeats, library, begin, options.seconds
        )
        start = tuned_genome(key.program, options.threads)
        settings = Settings(weights, options.seconds, options.seed, start=known(space, start))
        file, where = open_record(options.record, key, stack)
        recorder = Recorder(measurer, file, header(settings, key, names, rates))
        report("measuring the default program", None)
        search = Search(space, recorder, settings, lambda progress: report("searching", progress))
        result = search.run()
        recorder.close({"genome": result.genome.as_dict(), "choices": space.describe(result.genome)})
    found = summary(prepared, space, result, loads, names, rates)
    return replace(found, kept=_store(key, found, where), record=where)


def replay_search(checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, record: Path) -> TuneReport:
    """Repeat the decisions of a search from what it measured; nothing is measured, nothing kept.

    Raises:
        InvalidRecord: It cannot be read, or is of another program or version.
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
    """
    try:
        text = record.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRecord(f"{record} cannot be read: {reason}") from None
    first, lines = read_record(text)
    if program_in(first) != program_key(checkpoint, spec, recipe):
        raise InvalidRecord("the record is of another model, recipe or version of Headrace")
    prepared, _ = open_prepared(checkpoint, spec, recipe)
    space = gene_space(prepared.program)
    measurer: Measurer = Replayer(lines, space)
    result = Search(space, measurer, settings_of(first)).run()
    loads, names = workloads(spec.context_length)
    return replace(summary(prepared, space, result, loads, names, rates_in(first)), record=str(record))


def program_in(header: Mapping[str, Any]) -> str:
    """The key of the program that a record's first line names.

    Raises:
        InvalidRecord: It names none.
    """
    try:
        return msgspec.convert(header.get("key"), Key).program
    except msgspec.ValidationError as error:
        raise InvalidRecord(f"the record's program cannot be read: {error}") from None


def rates_in(header: Mapping[str, Any]) -> Rates:
    """The limits that a record's first line holds.

    Raises:
        InvalidRecord: There are none.
    """
    try:
        limits = {k: math.inf if v is None else v for k, v in header["limits"].items()}
        return msgspec.convert(limits, Rates)
    except (KeyError, AttributeError, msgspec.ValidationError) as error:
        raise InvalidRecord(f"the record's limits cannot be read: {error}") from None


def known(space: GeneSpace, genome: Genome) -> tuple[tuple[str, int], ...]:
    """A genome's choices as far as there are such genes."""
    return tuple((k, v) for k, v in genome.values if k in space.genes and v in space.genes[k].choices)


def header(settings: Settings, key: Key, names: tuple[str, ...], rates: Rates) -> dict[str, Any]:
    """The first line of a record."""
    return {
        "settings": msgspec.to_builtins(settings),
        "key": msgspec.to_builtins(key),
        "workloads": names,
        "limits": {k: v if math.isfinite(v) else None for k, v in msgspec.to_builtins(rates).items()},
        "machine": cpu_features().brand,
        "version": headrace.__version__,
    }


def open_record(path: Path | None, key: Key, stack: ExitStack) -> tuple[TextIO, str]:
    """The file of a record, and its name; a file in memory and no name if it cannot be written.

    Raises:
        InvalidInput: A file that was asked for cannot be written.
    """
    where = path or cache_folder() / "tuning" / f"{key.digest}.record.jsonl"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(where.open("w", encoding="utf-8")), str(where.absolute())
    except OSError as error:
        if path is not None:
            raise InvalidInput(f"{path} cannot be written: {error.strerror}", field="record") from None
        log.warning("the record of a search cannot be kept: %s", error)
        return io.StringIO(), ""


def _opening(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    prepared: PreparedModel,
    path: Path,
    builder: Builder,
    options: TuneOptions,
    loads: tuple[Workload, ...],
    repeats: tuple[int, ...],
) -> Opening:
    default = schedule_model(prepared)
    return Opening(
        str(checkpoint.path),
        str(path),
        str(builder.build(driver_source()).path),
        options.threads or default_threads(),
        loads,
        tuple(default.source.arrays.states.values()),
        default.state_offsets,
        default.pages,
        default.source.symbols,
        repeats,
        -(-spec.context_length // PAGE_TOKENS),
        spec.vocab_size,
    )


def _elsewhere(stack: ExitStack, prepared: PreparedModel) -> Path:
    import tempfile

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-tune-"))
    path = Path(folder) / "graphs.msgpack"
    keep(path, prepared)
    return path


def _store(key: Key, found: TuneReport, record: str) -> str:
    """Keep what was found, unless the defaults stay; where it is."""
    if not found.genome.values:
        return ""
    seconds: Mapping[str, tuple[float, float]] = {w.name: (w.default, w.tuned) for w in found.workloads}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = Entry(key, found.genome.as_dict(), found.genome.fingerprint, seconds, found.choices, now, record)
    try:
        return str(TuningDatabase().store(entry))
    except OSError as error:
        log.warning("what the search has found cannot be kept: %s; set HEADRACE_CACHE to a folder with room", error)
        return ""
