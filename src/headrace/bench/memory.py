"""How full an arena gets, how many requests run at once in it, and what moving pages costs.

The scheduler runs as in a server, on pages as large as real models'. Only the executor is missing: bytes need not exist
to be counted. Requests are always waiting, so from some moment on the arena is full.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.bench.memory_schemes import ITEM_BYTES, Model, one_size, ours, split, windows_kept
from headrace.bench.memory_use import bytes_in_use
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import Scheduler, SchedulerLimits
from headrace.engine.sequence import Sequence
from headrace.memory.commands import PageCopy
from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.room import Room
from headrace.memory.state_memory import Holding, RowWrite, StateMemory
from headrace.runtime.batch import Batch, SlotSampling

MEMORY_RATE = 4.8e12  # bytes/s of an H200: steps are short there, so that what is beside them shows most
STEP_TOKENS = 1024
MOST_RUNNING = 4096
WAITING = 8  # requests that are kept in the queue
LONG_SHARE = 0.3
SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, 256
VOCABULARY = 30_000
SPLITS = (0.8, 0.9, 1.0, 1.1, 1.2)  # times the share that the first group had with us

# Called with what is measured next.
Say = Callable[[str], None]


class FullArena(msgspec.Struct, frozen=True):
    """What the arena holds when the first request in the queue must wait, or a running one finds no page.

    Attributes:
        model: Whose dimensions.
        moments: Steps in which that happened.
        least: Smallest share of the arena's bytes that a running sequence reads again.
        mean: Mean of it.
        lost: Mean share of everything else, by reason.
        running: Sequences at once.
        finished: Requests that ended.
        preemptions: Sequences that gave up what they had.
        step_ms: Mean step: weights and state once through memory.
        moved: Bytes moved in the mean step.
        cost: Time to find pages to move and to copy them, as share of the mean step.
        cost_p99: 99th percentile of that time, as share of the 99th percentile of steps.
    """

    model: str
    moments: int
    least: float
    mean: float
    lost: dict[str, float]
    running: float
    finished: int
    preemptions: int
    step_ms: float
    moved: float
    cost: float
    cost_p99: float


class Concurrency(msgspec.Struct, frozen=True):
    """How many requests run at once under a scheme.

    Attributes:
        model: Whose dimensions.
        scheme: How the arena is divided.
        running: Sequences in the mean step.
        finished: Requests that ended.
        preemptions: Sequences that gave up what they had.
    """

    model: str
    scheme: str
    running: float
    finished: int
    preemptions: int


class TimedRoom(Room):
    """Notes how long it looks for pages to move."""

    seconds = 0.0

    def _compact(self, counts: Many[int]) -> bool:
        begin = time.perf_counter()
        found = super()._compact(counts)
        self.seconds += time.perf_counter() - begin
        return found


class WatchedMemory(StateMemory):
    """Notes when it refuses somebody, and how long it looks for pages to move."""

    room: TimedRoom
    refused = False

    def reset(self) -> None:
        """As in ``StateMemory``."""
        super().reset()
        self.room = TimedRoom(self.arena, self.pools, self.tree)

    def fits(self, held: Holding, tokens: int, *, step_tokens: int, spare: int = 0) -> bool:
        """As in ``StateMemory``."""
        found = super().fits(held, tokens, step_tokens=step_tokens, spare=spare)
        self.refused |= not found
        return found

    def grow(self, held: Holding, tokens: int) -> list[RowWrite] | None:
        """As in ``StateMemory``."""
        found = super().grow(held, tokens)
        self.refused |= found is None
        return found


class UnreservedMemory(StateMemory):
    """Lets in whoever fits now: pages kept free for others would weigh more where pages are large."""

    def fits(self, held: Holding, tokens: int, *, step_tokens: int, spare: int = 0) -> bool:
        """As in ``StateMemory``, without the spare pages."""
        return super().fits(held, tokens, step_tokens=step_tokens)


@dataclass(slots=True)
class Record:
    """What steps showed, one entry a step; ``uses`` only of those in which somebody was refused."""

    running: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)  # of held bytes, the first group's
    uses: list[dict[str, float]] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    planning: list[float] = field(default_factory=list)
    finished: int = 0


class Simulation:
    """A scheduler at work on a memory.

    Args:
        model: Whose state.
        memory: Where it goes.
        seed: Of the requests.
    """

    def __init__(self, model: Model, memory: StateMemory, seed: int = 0) -> None:
        self.model, self.memory = model, memory
        self.scheduler = Scheduler(memory, SchedulerLimits(MOST_RUNNING, STEP_TOKENS, None))
        self.record = Record()
        self._requests = requests(model.longest, seed)
        self._arrivals = 0

    def run(self, warmup: int, steps: int) -> Record:
        """Run so many steps after a warm-up, which is not recorded."""
        for step in range(warmup + steps):
            if step == warmup:
                self.record, self.scheduler.roster.preemptions = Record(), 0
            self._step(step)
        return self.record

    def _step(self, step: int) -> None:
        while len(self.scheduler.waiting) < WAITING:
            self._arrivals += 1
            self.scheduler.add(_sequence(self._arrivals, *next(self._requests)))
        if isinstance(self.memory, WatchedMemory):
            self.memory.refused, self.memory.room.seconds = False, 0.0
        planned = self.scheduler.plan(step)
        if planned is None:
            raise RuntimeError("nothing runs although requests wait")
        sequences = [sequence for sequence, _ in planned.rows]
        self._note(planned.batch, sequences)
        for sequence in sequences:
            if sequence.drawing:
                sequence.tokens[sequence.known] = (7919 * sequence.arrival + sequence.known) % VOCABULARY
                sequence.known, sequence.drawing = sequence.known + 1, 0
                if sequence.known == sequence.limit:
                    self.scheduler.remove(sequence)
                    self.record.finished += 1

    def _note(self, batch: Batch, sequences: Many[Sequence]) -> None:
        record, memory = self.record, self.memory
        held = [pool.held * pool.form.page_bytes for pool in memory.pools]
        record.running.append(len(self.scheduler.running))
        record.share.append(held[0] / sum(held))
        if not isinstance(memory, WatchedMemory):
            return
        copies = [command for command in batch.commands if isinstance(command, PageCopy)]
        record.moved.append(sum(memory.pools[copy.group].form.page_bytes for copy in copies))
        record.planning.append(memory.room.seconds)
        record.read.append(self._read_bytes(sequences))
        if memory.refused:
            record.uses.append(bytes_in_use(memory, self.scheduler.running))

    def _read_bytes(self, sequences: Many[Sequence]) -> float:
        """Bytes of weights and state that a step reads at least."""
        lengths = np.array([sequence.computed for sequence in sequences])
        found = self.model.read_bytes
        for group in self.model.groups:
            seen = np.minimum(lengths, group.window) if group.window else lengths
            items = int(seen.sum()) if group.by_token else len(sequences)
            found += items * group.item_bytes(ITEM_BYTES)
        return found


def requests(longest: int, seed: int) -> Iterator[tuple[list[int], int]]:
    """Prompts, and how many tokens will be drawn, without end.

    Short ones are log-normal, with medians of 148 and 493 tokens; long ones are uniform. Half of all begin with one of
    a few system prompts.
    """
    rng = np.random.default_rng(seed)
    system = rng.integers(0, VOCABULARY, (SYSTEM_PROMPTS, SYSTEM_TOKENS)).tolist()
    while True:
        if rng.random() < LONG_SHARE:
            prompt, output = rng.uniform(0.3, 0.75) * longest, rng.uniform(0.1, 0.25) * longest
        else:
            prompt, output = rng.lognormal(5, 0.8), rng.lognormal(6.2, 0.6)
        shared = system[rng.integers(SYSTEM_PROMPTS)] if rng.random() < 0.5 else []
        tokens = shared + rng.integers(0, VOCABULARY, int(prompt) + 1).tolist()
        yield tokens[: int(0.75 * longest)], min(int(output) + 1, int(0.25 * longest))


def _sequence(number: int, prompt: list[int], output: int) -> Sequence:
    tokens = np.zeros(len(prompt) + output, np.int32)
    tokens[: len(prompt)] = prompt
    return Sequence(
        request=number,
        index=0,
        arrival=number,
        params=SamplingParams(),
        sampling=SlotSampling(),
        stop_ids=frozenset(),
        limit=len(tokens),
        root=PrefixKey(""),
        tenant="",
        priority=0,
        deadline=math.inf,
        tokens=tokens,
        known=len(prompt),
        prompt_length=len(prompt),
        can_share_prompt=True,
        constraint=None,
        leader=None,
        queued=0.0,
    )


def measure_full_arena(model: Model, warmup: int, steps: int, seed: int = 0) -> FullArena:
    """Run requests with a prefix cache; see what the arena holds where it is full, and what moving pages costs."""
    simulation = Simulation(model, ours(WatchedMemory, model.groups, model.arena_bytes, prefix_cache=True), seed)
    record = simulation.run(warmup, steps)
    useful = [use.pop("useful") for use in record.uses]
    seconds = np.array(record.read) / MEMORY_RATE
    cost = 2 * np.array(record.moved) / MEMORY_RATE + np.array(record.planning)  # a copy reads and writes
    return FullArena(
        model=model.name,
        moments=len(useful),
        least=min(useful, default=1.0),
        mean=float(np.mean(useful)) if useful else 1.0,
        lost={reason: float(np.mean([use[reason] for use in record.uses])) for reason in (record.uses or [{}])[0]},
        running=float(np.mean(record.running)),
        finished=record.finished,
        preemptions=simulation.scheduler.roster.preemptions,
        step_ms=float(seconds.mean()) * 1e3,
        moved=float(np.mean(record.moved)),
        cost=float(cost.sum() / seconds.sum()),
        cost_p99=float(np.quantile(cost, 0.99) / np.quantile(seconds, 0.99)),
    )


def measure_concurrency(model: Model, warmup: int, steps: int, say: Say, seed: int = 0) -> list[Concurrency]:
    """How many requests run at once with us, with a fixed split at its best, and with pages of one size.

    Without a prefix cache, and without pages kept free for those that run, which would be in favour of small pages.
    """
    kind, groups, nbytes = UnreservedMemory, model.groups, model.arena_bytes
    found = []

    def measure(scheme: str, memory: StateMemory) -> Record:
        say(f"{model.name}, {scheme}")
        simulation = Simulation(model, memory, seed)
        record = simulation.run(warmup, steps)
        running = float(np.mean(record.running))
        found.append(Concurrency(model.name, scheme, running, record.finished, simulation.scheduler.roster.preemptions))
        return record

    share = float(np.mean(measure("ours", ours(kind, groups, nbytes, prefix_cache=False)).share))
    if len(groups) == 2:
        for factor in SPLITS:
            part = factor * share
            measure(f"split {part:.0%}", split(kind, groups, nbytes, part, prefix_cache=False))
    measure("one size", one_size(kind, groups, nbytes, prefix_cache=False))
    if any(not group.by_token for group in groups):
        measure("one size, two states", one_size(kind, groups, nbytes, prefix_cache=False, states=2))
    if len(groups) > 1:
        measure("one size, padded", one_size(kind, groups, nbytes, prefix_cache=False, grouped=False))
    if any(group.window for group in groups):
        measure("one size, windows kept", one_size(kind, windows_kept(groups), nbytes, prefix_cache=False))
    return found
