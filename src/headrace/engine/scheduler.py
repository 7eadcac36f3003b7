"""``Scheduler``: which sequences compute how many tokens in the next step, and on which pages."""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from headrace.engine import policy
from headrace.engine.cost import StepCost
from headrace.engine.sequence import NO_SLOT, Sequence
from headrace.memory.commands import PageCommand
from headrace.memory.state_memory import Holding, RowWrite, StateMemory
from headrace.runtime.batch import FROM_SLOT, Batch, IntArray, PageWrite, SlotOpen, decode_batch


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds a step.

    Attributes:
        slots: Most sequences that run at once.
        max_batch_tokens: Most tokens of a step.
        max_step_seconds: Longest step wanted while sequences decode; None bounds by tokens alone.
    """

    slots: int
    max_batch_tokens: int
    max_step_seconds: float | None


@dataclass(slots=True)
class Plan:
    """A step in the making: its rows, and what the executor must be told beside them."""

    counts: dict[Sequence, int] = field(default_factory=dict)
    opens: dict[Sequence, SlotOpen] = field(default_factory=dict)
    pages: list[tuple[Sequence, PageWrite]] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that was preempted while the step was planned."""
        self.counts.pop(sequence, None)
        self.opens.pop(sequence, None)
        self.pages = [(owner, write) for owner, write in self.pages if owner is not sequence]


class Scheduler:
    """Continuous batching under a token budget, with chunked prefill and preemption; first come, first served.

    A step takes one token of every decoding sequence, then pieces of prompts in order of arrival, then admits waiting
    sequences as far as slots, pages and budget go. When pages run out the last to arrive goes back to the queue; its
    pages stay in the prefix tree until somebody needs them. The first to arrive is never preempted for another, so
    some sequence always ends.

    Args:
        memory: Pages.
        limits: Bounds of a step.
    """

    def __init__(self, memory: StateMemory, limits: SchedulerLimits) -> None:
        self.memory = memory
        self.limits = limits
        self.cost = StepCost()
        self.waiting: list[Sequence] = []  # by arrival
        self.running: list[Sequence] = []  # by arrival
        self.preemptions = 0
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._exchanged: list[tuple[Sequence, PageWrite]] = []  # rows that share() changed since the last plan

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence in order of arrival."""
        bisect.insort(self.waiting, sequence, key=attrgetter("arrival"))

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, ended or aborted, and free what it holds; its full pages stay cached."""
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence)
        sequence.finished = True

    def plan(self, step: int) -> tuple[Batch, dict[Sequence, int]] | None:
        """Decide the next step.

        Returns:
            The batch, and the sequence of each of its rows with its tokens; None when there is nothing to run.
        """
        plan = Plan(pages=self._exchanged)
        self._exchanged = []
        self._plan_decode(plan)
        if self.waiting or len(plan.counts) < len(self.running):
            budget = self._prefill_budget(plan)
            budget = self._plan_prefill(plan, budget)
            self._admit(plan, budget)
        return (_batch(step, plan, self.memory.commands()), plan.counts) if plan.counts else None

    def computed(self, sequence: Sequence, count: int) -> None:
        """Note that ``count`` more tokens of a sequence have their state; offer the prompt to others once done."""
        was_prefill = sequence.computed < sequence.prompt_length
        sequence.computed += count
        if self.memory.forgets:
            self._note(sequence, self.memory.settle(sequence.held))
        if was_prefill and (sequence.computed >= sequence.prompt_length or self.memory.forgets):
            self._share(sequence)
        if self.memory.forgets:
            self.memory.trim(sequence.held, sequence.computed)

    # --- planning -----------------------------------------------------------------------------------------------

    def _plan_decode(self, plan: Plan) -> None:
        for sequence in self.running.copy():
            if sequence.slot == NO_SLOT or sequence.pending != 1:
                continue
            # Mostly there is room on the last page, which is quickly seen.
            if sequence.computed < sequence.held.reach or self._grow(plan, sequence, 1):
                plan.counts[sequence] = 1

    def _prefill_budget(self, plan: Plan) -> int:
        chunked = [s for s in self.running if s.pending > 1]
        return policy.prefill_budget(
            max_tokens=self.limits.max_batch_tokens,
            decode_rows=len(plan.counts),
            decode_pairs=sum(len(s.tokens) for s in plan.counts),
            context=chunked[0].computed if chunked else 0,
            max_seconds=self.limits.max_step_seconds,
            estimate=self.cost.estimate,
            granule=self.memory.page_tokens,
        )

    def _plan_prefill(self, plan: Plan, budget: int) -> int:
        for sequence in list(self.running):
            if budget > 0 and sequence.slot != NO_SLOT and sequence.pending > 1:
                budget -= self._take_chunk(plan, sequence, budget)
        return budget

    def _take_chunk(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        count = policy.chunk(
            sequence.computed, sequence.pending, budget, self.memory.page_tokens if self.memory.has_states else 1
        )
        if not self._grow(plan, sequence, count):
            return 0
        plan.counts[sequence] = count
        return count

    def _admit(self, plan: Plan, budget: int) -> None:
        position = 0
        while budget > 0 and self._free_slots and position < len(self.waiting):
            sequence = self.waiting[position]
            if self._waits_for_leader(sequence):
                position += 1
                continue
            if not self._start(plan, sequence):
                return  # strictly in order: a smaller one behind must not starve it
            taken = self._take_chunk(plan, sequence, budget)
            if not taken:
                return
            budget -= taken

    def _waits_for_leader(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        if leader is None or leader.finished or not self.memory.prefix_cache:
            return False
        return leader.computed < leader.prompt_length

    def _start(self, plan: Plan, sequence: Sequence) -> bool:
        """Move a sequence from the queue into a slot, with the cached part of its tokens."""
        tokens = np.array(sequence.tokens, np.int32)
        held, computed = Holding(), 0
        if sequence.can_share_prompt:
            held, computed = self.memory.match(sequence.salt, tokens)

        def fits(spare: int) -> bool:
            return self.memory.fits(held, len(tokens), step_tokens=self.limits.max_batch_tokens, spare=spare)

        if not policy.may_admit(running=len(self.running), fits=fits):
            self.memory.release(held)
            return False
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=attrgetter("arrival"))
        sequence.slot = self._free_slots.pop()
        sequence.held, sequence.computed = held, computed
        sequence.fresh_slot = True
        sequence.prompt_logprobs = []
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_length)
            sequence.first_scheduled = time.monotonic()
        plan.opens[sequence] = SlotOpen(sequence.slot, tokens, sequence.prompt_length, sequence.sampling)
        for group, row in enumerate(held.rows):
            if len(row):
                plan.pages.append((sequence, PageWrite(sequence.slot, 0, row, group)))
        return True

    def _grow(self, plan: Plan, sequence: Sequence, count: int) -> bool:
        """Give a sequence pages for ``count`` more tokens, preempting others if need be; False if it had to go."""
        while (writes := self.memory.grow(sequence.held, sequence.computed + count)) is None:
            victim = self.running[policy.victim([s.arrival for s in self.running])]
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        plan.pages += [(sequence, _page_write(sequence, write)) for write in writes]
        return True

    def _preempt(self, plan: Plan, sequence: Sequence) -> None:
        plan.drop(sequence)
        self._leave(sequence)
        self.add(sequence)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of its slot; the pages that it computed stay in the prefix tree."""
        self._share(sequence)
        self._exchanged = [(owner, write) for owner, write in self._exchanged if owner is not sequence]
        self.memory.release(sequence.held)
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.computed = NO_SLOT, 0

    def _share(self, sequence: Sequence) -> None:
        tokens = np.array(sequence.tokens[: sequence.computed], np.int32)
        self._note(sequence, self.memory.share(sequence.salt, tokens, sequence.held))

    def _note(self, sequence: Sequence, writes: list[RowWrite]) -> None:
        self._exchanged += [(sequence, _page_write(sequence, write)) for write in writes]

    # --- inspection ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants of queues, slots and pages."""
        slots = [s.slot for s in self.running]
        assert NO_SLOT not in slots, "a running sequence has no slot"
        assert sorted(slots + self._free_slots) == list(range(self.limits.slots)), "a slot is lost or shared"
        assert all(s.slot == NO_SLOT and not s.held.rows for s in self.waiting), "a waiting sequence holds something"
        for queue in (self.waiting, self.running):
            assert [s.arrival for s in queue] == sorted({s.arrival for s in queue}), "a queue is out of order"
        for sequence in self.running:
            assert self.memory.holds(sequence.held, sequence.computed), "a sequence computed more than its pages hold"
        self.memory.check(s.held for s in self.running)


def _page_write(sequence: Sequence, write: RowWrite) -> PageWrite:
    return PageWrite(sequence.slot, write.start, write.handles, write.group)


def _batch(step: int, plan: Plan, commands: tuple[PageCommand, ...]) -> Batch:
    pages = tuple([write for _, write in plan.pages])
    if not any(s.fresh_slot for s in plan.counts):  # all drew a token in their slots, so one is pending in each
        return decode_batch(step, commands, pages, [s.slot for s in plan.counts], [s.computed for s in plan.counts])
    counts = np.fromiter(plan.counts.values(), np.int32, len(plan.counts))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return Batch(
        step=step,
        commands=commands,
        opens=tuple(plan.opens.values()),
        pages=pages,
        slots=np.array([s.slot for s in plan.counts], np.int32),
        starts=np.array([s.computed for s in plan.counts], np.int32),
        offsets=offsets,
        tokens=np.concatenate([_row_tokens(s, count) for s, count in plan.counts.items()]),
        sample=np.array([count == s.pending for s, count in plan.counts.items()], np.bool_),
    )


def _row_tokens(sequence: Sequence, count: int) -> IntArray:
    if count == 1 and not sequence.fresh_slot and sequence.output_length and sequence.pending == 1:
        return np.array([FROM_SLOT], np.int32)
    return np.array(sequence.tokens[sequence.computed : sequence.computed + count], np.int32)
