"""``Scheduler``: which sequences compute how many tokens in the next step, and on which pages."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from headrace.engine import policy
from headrace.engine.cost import StepCost
from headrace.engine.order import Order
from headrace.engine.ordering import PolicyName
from headrace.engine.plan import Plan, Planned, finish
from headrace.engine.sequence import NO_SLOT, Sequence
from headrace.engine.shares import Shares
from headrace.engine.trials import Trials
from headrace.memory.behind import NOTHING, Tiers
from headrace.memory.eviction import RecomputeCost
from headrace.memory.state_memory import Holding, RowWrite, StateMemory
from headrace.runtime.batch import PageWrite, SlotOpen

RANK = attrgetter("rank")
TYPICAL_PROMPT = 1024.0  # tokens, before any was seen
PROMPT_SHARE = 1 / 32  # of the last prompt in the mean
FETCHED = 8  # waiting sequences for whom prefixes are fetched from tiers


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds a step, and who comes first.

    Attributes:
        slots: Most sequences that run at once.
        max_batch_tokens: Most tokens of a step.
        max_step_seconds: Longest step wanted while sequences decode; None bounds by tokens alone.
        policy: Who is admitted and prefilled first.
        first_token_seconds: For the policy ``slo``: time to the first token of requests that name none.
        weights: Shares of tenants, for the policy ``fair``; 1 where nothing is said.
    """

    slots: int
    max_batch_tokens: int
    max_step_seconds: float | None
    policy: PolicyName = "fcfs"
    first_token_seconds: float = math.inf
    weights: tuple[tuple[str, float], ...] = ()


class Scheduler:
    """Continuous batching under a token budget, with chunked prefill and preemption.

    A step takes one token of every decoding sequence, then pieces of prompts, then admits waiting sequences as far as
    slots, pages and budget go; prompts in the order of a policy (see ``ordering``). When pages run out, the least
    urgent to arrive last goes back to the queue; its pages stay in the prefix tree until somebody needs them. The
    first in that order is never preempted for another, so some sequence always ends.

    Steps are planned ahead: what is planned counts as computed, because an executor runs batches in order.

    Args:
        memory: Pages.
        limits: Bounds of a step.
        tiers: Where prefixes are kept beyond the arena; None: nowhere.
    """

    def __init__(self, memory: StateMemory, limits: SchedulerLimits, tiers: Tiers | None = None) -> None:
        self.memory = memory
        self.tiers = tiers or Tiers(memory)
        self.limits = limits
        self.cost = StepCost()
        self.shares = Shares(dict(limits.weights))
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # by rank
        self.preemptions = 0
        self._prompt_tokens = TYPICAL_PROMPT  # mean of late
        self._order = Order(limits.policy, limits.first_token_seconds, memory, self.cost, self.shares)
        self._trials = Trials()
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._exchanged: list[tuple[Sequence, PageWrite]] = []  # rows of pages that changed since the last plan

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.shares.enter(sequence.tenant)
        self._prompt_tokens += PROMPT_SHARE * (sequence.prompt_length - self._prompt_tokens)
        bisect.insort(self.waiting, sequence, key=RANK)

    def remove(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Forget a sequence, ended or aborted, and free what it holds.

        Args:
            sequence: Which one.
            sound: Its full pages may stay cached; else nothing of its tokens may be found again.
        """
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence, share=sound)
        if not sound:
            self._forget(sequence)
        self._trials.end(sequence)
        self.shares.leave(sequence.tenant)
        sequence.finished = True

    def late(self, now: float) -> list[Sequence]:
        """Those whose request has waited beyond its deadline: what counts is its first sample."""
        return [s for s in self.waiting if s.deadline < now and (s.leader or s).first_scheduled is None]

    def prefill_tokens(self, priority: int) -> int:
        """Tokens that are to be computed before a new prompt of a priority.

        A sample that waits for its prompt will begin with the last token of it.
        """
        before = [s for s in (*self.running, *self.waiting) if s.priority <= priority and s.pending > 1]
        return sum(1 if self._waits_for_leader(s) else s.pending for s in before)

    def plan(self, step: int) -> Planned | None:
        """Decide the next step, on the understanding that those planned before it will have run.

        Returns:
            The step; None when there is nothing to run.
        """
        plan = Plan(pages=self._exchanged)
        self._exchanged = []
        if self._trials.suspect:
            self._plan_trial(plan, self._trials.suspect)
        else:
            self._plan_all(plan)
        if not plan.counts:
            self._exchanged = plan.pages
            if not self.tiers.needs_batch:
                return None
        planned = finish(step, plan, self.memory.commands())
        self.tiers.planned(step)
        for sequence, count in plan.counts.items():
            self._planned(sequence, count)
        return planned

    # --- failures -----------------------------------------------------------------------------------------------

    def restart(self, suspects: list[Sequence]) -> None:
        """Begin anew after a step that failed, when nobody knows what pages and slots hold.

        Args:
            suspects: Those that were in the step. One after the other runs alone, up to its next token, before others
                run again; so only who is at fault fails.
        """
        for sequence in self.running.copy():
            self._requeue(sequence, share=False)
        self.tiers.reset()
        self.memory.reset()
        self._exchanged = []
        self._trials.add(suspects)

    def clear(self, sequence: Sequence) -> None:
        """A suspect has drawn a token; it waits until all have been tried."""
        if self._trials.end(sequence) and self._trials.suspect:
            self._requeue(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Let nobody find what is cached of a sequence that failed; whoever took some of that computes it anew."""
        root, tokens = sequence.root, sequence.tokens[: sequence.known]
        pages = self.memory.forget(root, tokens)
        self.tiers.forget(root, tokens, pages)
        for other in self.running.copy():
            if self.memory.has_any(other.held, pages):
                self._requeue(other, share=False)

    def _plan_trial(self, plan: Plan, suspect: Sequence) -> None:
        if suspect.slot == NO_SLOT and not self._start(plan, suspect):
            return
        if suspect.pending and not suspect.drawing:
            self._take_chunk(plan, suspect, self.limits.max_batch_tokens)

    # --- planning -----------------------------------------------------------------------------------------------

    def _plan_all(self, plan: Plan) -> None:
        self._plan_decode(plan)
        if self._somebody_may_start() or len(plan.counts) < len(self.running):
            now = time.monotonic()
            budget = self._prefill_budget(plan)
            if self.tiers.present:
                self._fetch(self._order.sort(self.waiting, now)[:FETCHED])
            prompts = {s.priority for s in self.running if s.pending > 1}
            admitting = True
            # A prompt that is being computed makes way for a more urgent one that waits.
            for priority in sorted(prompts.union(s.priority for s in self.waiting)):
                self._plan_prefill(plan, budget, now, priority)
                admitting = admitting and self._admit(plan, budget, now, priority)

    def _somebody_may_start(self) -> bool:
        """Whether it is worth looking at the queue; while every slot is taken it mostly is not."""
        if not self.waiting:
            return False
        return bool(self._free_slots) or self.tiers.present or self.waiting[0].priority < self.running[-1].priority

    def _plan_decode(self, plan: Plan) -> None:
        for sequence in self.running.copy():
            if sequence.slot == NO_SLOT or sequence.pending != 1 or sequence.complete:
                continue
            # Mostly there is room on the last page, which is quickly seen.
            if sequence.computed < sequence.held.reach or self._grow(plan, sequence, 1):
                plan.counts[sequence] = 1

    def _prefill_budget(self, plan: Plan) -> policy.Budget:
        chunked = [s for s in self.running if s.pending > 1]
        bounded = policy.prefill_budget(
            max_tokens=self.limits.max_batch_tokens,
            decode_rows=len(plan.counts),
            decode_pairs=sum(s.computed + 1 for s in plan.counts),
            context=chunked[0].computed if chunked else 0,
            max_seconds=self.limits.max_step_seconds,
            estimate=self.cost.estimate,
            granule=self.memory.page_tokens,
        )
        most_urgent = min((s.priority for s in plan.counts), default=None)
        return policy.Budget(max(self.limits.max_batch_tokens - len(plan.counts), 0), bounded, most_urgent)

    def _plan_prefill(self, plan: Plan, budget: policy.Budget, now: float, priority: int) -> None:
        prompts = [s for s in self.running if s.pending > 1 and s.priority == priority]
        for sequence in self._order.sort(prompts, now):
            left = budget.left(priority)
            if left > 0 and sequence.slot != NO_SLOT:
                budget.take(priority, self._take_chunk(plan, sequence, left))

    def _take_chunk(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        count = policy.chunk(sequence.computed, sequence.pending, budget, self._places(sequence))
        if not self._grow(plan, sequence, count):
            return 0
        plan.counts[sequence] = count
        return count

    def _places(self, sequence: Sequence) -> policy.Places | None:
        """Where the states of a prompt are kept; None if there are none."""
        if not self.memory.has_states:
            return None
        step_seconds, per_token, per_1000_pairs = self.cost.coefficients
        token_seconds = per_token + per_1000_pairs / 1000 * self._prompt_tokens / 2
        spacing = self.memory.snapshot_spacing(step_seconds, token_seconds, self._prompt_tokens)
        return policy.Places(self.memory.page_tokens, spacing, sequence.keep_at)

    def _admit(self, plan: Plan, budget: policy.Budget, now: float, priority: int) -> bool:
        """Start waiting sequences of a priority; whether less urgent ones may start behind them."""
        if not self._free_slots and priority >= self.running[-1].priority:
            return False
        for sequence in self._order.sort([s for s in self.waiting if s.priority == priority], now):
            left = budget.left(priority)
            if left <= 0:
                return False
            if sequence.is_fetching or self._waits_for_leader(sequence):
                continue
            if not self._start(plan, sequence):
                return False  # strictly in order: a smaller one behind must not starve it
            taken = self._take_chunk(plan, sequence, left)
            if not taken:
                return False
            budget.take(priority, taken)
        return True

    def _fetch(self, sequences: list[Sequence]) -> None:
        """Have prefixes loaded from tiers where that is faster than computing them; those behind go first meanwhile."""
        for sequence in sequences:
            if sequence.fetch is None and sequence.can_share_prompt and not self._waits_for_leader(sequence):
                tokens = sequence.tokens[: sequence.known]
                sequence.fetch = self.tiers.fetch(sequence.root, tokens, self._recompute_seconds) or NOTHING

    def _recompute_seconds(self, start: int, end: int) -> float:
        return self.cost.prefill(start, end - start)

    def _waits_for_leader(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        if leader is None or leader.finished or not self.memory.prefix_cache:
            return False
        return leader.computed < leader.prompt_length

    # --- slots and pages ----------------------------------------------------------------------------------------

    def _start(self, plan: Plan, sequence: Sequence) -> bool:
        """Move a sequence from the queue into a slot, with the cached part of its tokens."""
        tokens = sequence.tokens[: sequence.known]
        held, computed = Holding(), 0
        if sequence.can_share_prompt:
            held, computed = self.memory.match(sequence.root, tokens)
        if not self._make_way(plan, sequence, held):
            self.memory.release(held)
            return False
        if self._fork(sequence, held):
            computed = sequence.prompt_length - 1
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=RANK)
        sequence.slot = self._free_slots.pop()
        sequence.held, sequence.computed, sequence.keep_at = held, computed, held.branch
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

    def _fork(self, sequence: Sequence, held: Holding) -> bool:
        """Take the prompt but for its last token, behind which it draws, from its leader; False if that cannot be."""
        leader, tokens = sequence.leader, sequence.prompt_length - 1
        if leader is None or leader.slot == NO_SLOT or leader.computed < tokens or sequence.known > tokens + 1:
            return False
        return self.memory.prefix_cache and self.memory.fork(leader.held, held, tokens)

    def _make_way(self, plan: Plan, sequence: Sequence, held: Holding) -> bool:
        """Whether a sequence can start, after less urgent ones have gone, if need be."""

        def fits(spare: int) -> bool:
            return self.memory.fits(held, sequence.known, step_tokens=self.limits.max_batch_tokens, spare=spare)

        while not self._free_slots or not policy.may_admit(running=len(self.running), fits=fits):
            if not self.running or self.running[-1].priority <= sequence.priority:
                return False
            self._preempt(plan, self.running[-1])
        return True

    def _grow(self, plan: Plan, sequence: Sequence, count: int) -> bool:
        """Give a sequence pages for ``count`` more tokens, preempting others if need be; False if it had to go."""
        while (writes := self.memory.grow(sequence.held, sequence.computed + count)) is None:
            victim = self.running[-1]
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        plan.pages += [(sequence, _page_write(sequence, write)) for write in writes]
        return True

    def _preempt(self, plan: Plan, sequence: Sequence) -> None:
        plan.drop(sequence)
        self._requeue(sequence)
        self.preemptions += 1

    def _requeue(self, sequence: Sequence, *, share: bool = True) -> None:
        self._leave(sequence, share=share)
        bisect.insort(self.waiting, sequence, key=RANK)

    def _leave(self, sequence: Sequence, *, share: bool) -> None:
        """Take a sequence out of its slot; what batches on their way draw for it is void."""
        _, per_token, per_1000_pairs = self.cost.coefficients
        if per_token or per_1000_pairs:
            self.memory.tree.set_cost(RecomputeCost(per_token, per_1000_pairs / 1000))
        if share:
            self._share(sequence)
        self._exchanged = [(owner, write) for owner, write in self._exchanged if owner is not sequence]
        self.memory.release(sequence.held)
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.computed, sequence.drawing, sequence.fetch = NO_SLOT, 0, 0, None
        sequence.stay += 1

    # --- what a planned step will have done ---------------------------------------------------------------------

    def _planned(self, sequence: Sequence, count: int) -> None:
        """Count a row of a planned step as done; offer the prompt to others once all of it is."""
        if sequence.pending == count:
            sequence.drawing += 1
            sequence.fresh_slot = False
        self.shares.serve(sequence.tenant, count)
        in_prompt = sequence.computed < sequence.prompt_length
        sequence.computed += count
        windows, places = self.memory.has_windows, self._places(sequence) if in_prompt else None
        if self.memory.has_states:
            self._note(sequence, self.memory.settle(sequence.held))
        keep = places is not None and places.has(sequence.computed, sequence.known)
        if in_prompt and (keep or windows or sequence.computed >= sequence.prompt_length):
            self._share(sequence, keep_state=keep)
        if windows:
            self.memory.trim(sequence.held, sequence.computed)

    def _share(self, sequence: Sequence, *, keep_state: bool = True) -> None:
        """Offer what a sequence has computed. All of that is known: only what is being drawn is not."""
        tokens = sequence.tokens[: sequence.computed]
        self._note(sequence, self.memory.share(sequence.root, tokens, sequence.held, keep_state=keep_state))
        self.tiers.after_share(sequence.root, tokens, sequence.held)

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
            assert [s.rank for s in queue] == sorted({s.rank for s in queue}), "a queue is out of order"
        for sequence in self.running:
            assert self.memory.holds(sequence.held, sequence.computed), "a sequence computed more than its pages hold"
            assert sequence.computed < sequence.known + sequence.drawing, "a token was computed that is not there"
        assert all(s in self.running or s in self.waiting for s in self._trials.suspects), "a suspect is gone"
        self.shares.check(self._tenants())
        self.tiers.check(s.held for s in self.running)

    def _tenants(self) -> Iterator[str]:
        return (s.tenant for queue in (self.waiting, self.running) for s in queue)


def _page_write(sequence: Sequence, write: RowWrite) -> PageWrite:
    return PageWrite(sequence.slot, write.start, write.handles, write.group)
