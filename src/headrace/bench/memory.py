"""How full the arena gets, how many requests run at once in it, and what moving pages costs.

The scheduler runs as it does in a server, with real layouts; only the executor is missing, for bytes need not exist to
be counted. Requests are always waiting, so the arena is full from some moment on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from headrace.bench.memory_schemes import ITEM_BYTES, Model
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import Scheduler, SchedulerLimits
from headrace.engine.sequence import Sequence
from headrace.memory.commands import PageCopy
from headrace.memory.pool import NO_PAGE
from headrace.memory.state_memory import READ, Holding, RowWrite, StateMemory
from headrace.runtime.batch import Batch, IntArray, SlotSampling

STEP_TOKENS = 1024
MOST_RUNNING = 4096
WAITING = 8  # requests that are kept in the queue
SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, 256
VOCABULARY = 30_000


class WatchedMemory(StateMemory):
    """A memory that notes when it refuses somebody, and how long it looks for pages to move."""

    refused = False
    seconds = 0.0

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

    def _compact(self, counts: list[int]) -> bool:
        begin = time.perf_counter()
        found = super()._compact(counts)
        self.seconds += time.perf_counter() - begin
        return found


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests without end: short ones, and a share of long ones.

    Attributes:
        long: Share of long requests, phase by phase; the phases come round again.
        phase: Requests of a phase.
        longest: Tokens of the longest request, output included.
        seed: Of the random numbers.
    """

    long: tuple[float, ...]
    phase: int
    longest: int
    seed: int = 0

    def requests(self) -> Iterator[tuple[list[int], int]]:
        """Prompts, and the numbers of tokens that will be drawn. Half begin with one of a few system prompts."""
        rng = np.random.default_rng(self.seed)
        system = rng.integers(0, VOCABULARY, (SYSTEM_PROMPTS, SYSTEM_TOKENS)).tolist()
        number = 0
        while True:
            if rng.random() < self.long[number // self.phase % len(self.long)]:
                prompt, output = rng.uniform(0.3, 0.75) * self.longest, rng.uniform(0.1, 0.25) * self.longest
            else:
                prompt, output = rng.lognormal(5, 0.8), rng.lognormal(6.2, 0.6)
            prompt, output = min(int(prompt) + 1, int(0.75 * self.longest)), min(int(output) + 1, int(0.25 * self.longest))
            tokens = rng.integers(0, VOCABULARY, prompt).tolist()
            shared = system[rng.integers(SYSTEM_PROMPTS)] if rng.random() < 0.5 else []
            yield (shared + tokens)[: int(0.75 * self.longest)], output
            number += 1


@dataclass(slots=True)
class Outcome:
    """What a run showed, after its warm-up.

    Attributes:
        useful: At each step in which somebody was refused: share of the arena that a live sequence reads again.
        lost: The same of what is not, by reason.
        running: Sequences of each step.
        finished: Requests that ended.
        preemptions: Sequences that had to give up what they had.
        moved: Bytes that each step was told to copy.
        planning: Seconds that each step's plan took to find them.
        read: Bytes that each step reads: weights and state.
    """

    useful: list[float] = field(default_factory=list)
    lost: dict[str, list[float]] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    finished: int = 0
    preemptions: int = 0
    moved: list[int] = field(default_factory=list)
    planning: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


class Simulation:
    """A scheduler at work on a memory."""

    def __init__(self, model: Model, memory: StateMemory, traffic: Traffic, *, account: bool = True) -> None:
        self.model, self.memory, self.account = model, memory, account
        self.scheduler = Scheduler(memory, SchedulerLimits(MOST_RUNNING, STEP_TOKENS, None))
        self._requests = traffic.requests()
        self._arrivals = 0
        self._output: dict[Sequence, int] = {}
        self.outcome = Outcome()

    def run(self, warmup: int, steps: int) -> Outcome:
        """Run so many steps; the first ``warmup`` do not count."""
        for step in range(warmup + steps):
            if step == warmup:
                self.outcome, before = Outcome(), self.scheduler.preemptions
            self._step(step)
        self.outcome.preemptions = self.scheduler.preemptions - before
        return self.outcome

    def _step(self, step: int) -> None:
        while len(self.scheduler.waiting) < WAITING:
            self._arrive()
        watched = self.memory if isinstance(self.memory, WatchedMemory) else None
        if watched is not None:
            watched.refused, watched.seconds = False, 0.0
        planned = self.scheduler.plan(step)
        if planned is None:
            raise RuntimeError("nothing runs although requests wait")
        batch, counts = planned
        out = self.outcome
        out.running.append(len(self.scheduler.running))
        if watched is not None:
            out.planning.append(watched.seconds)
            self._note_copies(batch, counts)
            if watched.refused and self.account:
                self._note_use(counts)
        for sequence, count in counts.items():
            self.scheduler.computed(sequence, count)
            sequence.fresh_slot = False
            if sequence.pending == 0:
                sequence.tokens.append(int(sequence.arrival * 7919 + len(sequence.tokens)) % VOCABULARY)
                if sequence.output_length >= self._output[sequence]:
                    self.scheduler.remove(sequence)
                    del self._output[sequence]
                    out.finished += 1

    def _arrive(self) -> None:
        tokens, output = next(self._requests)
        self._arrivals += 1
        sequence = Sequence(
            request=self._arrivals,
            index=0,
            arrival=self._arrivals,
            params=SamplingParams(),
            sampling=SlotSampling(),
            stop_ids=frozenset(),
            limit=len(tokens) + output,
            salt="",
            tokens=tokens,
            prompt_length=len(tokens),
            constraint=None,
            leader=None,
            queued=0.0,
        )
        self._output[sequence] = output
        self.scheduler.add(sequence)

    def _note_copies(self, batch: Batch, counts: dict[Sequence, int]) -> None:
        pools = self.memory.pools
        moved = sum(pools[c.group].form.page_bytes for c in batch.commands if isinstance(c, PageCopy))
        read = self.model.read_bytes
        lengths = np.array([sequence.computed for sequence in counts])
        for group in self.model.groups:
            seen = np.minimum(lengths, group.window) if group.window else lengths
            tokens = int(seen.sum()) if group.by_token else 2 * len(counts)
            read += tokens * group.item_bytes(ITEM_BYTES)
        self.outcome.moved.append(moved)
        self.outcome.read.append(read)

    # -- where the bytes are

    def _note_use(self, counts: dict[Sequence, int]) -> None:
        memory = self.memory
        nbytes = memory.arena.nbytes
        lost = {"free slabs": memory.arena.free_slabs * memory.arena.slab_bytes}
        useful = 0.0
        for n, (group, pool) in enumerate(zip(memory.groups, memory.pools, strict=True)):
            page = pool.form.page_bytes
            begin = np.full(pool.capacity, memory.page_tokens, np.int32)  # of what is read again in each page
            end = np.zeros(pool.capacity, np.int32)
            filled = np.zeros(pool.capacity, np.int32)
            for sequence in self.scheduler.running:
                row = sequence.held.rows[n] if sequence.held.rows else np.empty(0, np.int32)
                reached = sequence.computed + counts.get(sequence, 0)
                if not group.by_token:
                    end[row[READ:1]] = filled[row[READ:1]] = 1
                    begin[row[READ:1]] = 0
                    continue
                self._note_row(group.window, row, sequence.computed, reached, begin, end, filled)
            tokens = memory.page_tokens if group.by_token else 1
            again = int(np.maximum(end - begin, 0).sum()) * page / tokens
            useful += again
            held = pool.held * page
            name = f"group {n}"
            lost[f"{name}: not computed"] = held - int(filled.sum()) * page / tokens
            lost[f"{name}: behind the window"] = int(filled.sum()) * page / tokens - again
            lost[f"{name}: cached alone"] = pool.evictable * page
            lost[f"{name}: free pages"] = pool.room * page
            lost[f"{name}: rests of slabs"] = len(pool.slabs) * (memory.arena.slab_bytes - pool.form.slab_pages * page)
        self.outcome.useful.append(useful / nbytes)
        for reason, some in lost.items():
            self.outcome.lost.setdefault(reason, []).append(some / nbytes)

    def _note_row(
        self, window: int, row: IntArray, computed: int, reached: int, begin: IntArray, end: IntArray, filled: IntArray
    ) -> None:
        tokens = self.memory.page_tokens
        first = max(0, computed - window + 1) if window else 0
        starts = np.arange(len(row), dtype=np.int32) * tokens
        there = row != NO_PAGE
        handles, starts = row[there], starts[there]
        np.maximum.at(filled, handles, np.clip(reached - starts, 0, tokens))
        np.maximum.at(end, handles, np.clip(reached - starts, 0, tokens))
        np.minimum.at(begin, handles, np.clip(first - starts, 0, tokens))
