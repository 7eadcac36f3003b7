"""``Scheduler``: which sequences compute how many tokens in the next step, and on which pages."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from headrace.engine import policy
from headrace.engine.cost import StepCost
from headrace.engine.order import Order
from headrace.engine.ordering import PolicyName
from headrace.engine.plan import Plan, Planned, finish
from headrace.engine.roster import Roster
from headrace.engine.sequence import NO_SLOT, Sequence
from headrace.engine.shares import Shares
from headrace.engine.trials import Trials
from headrace.memory.behind import NOTHING, Tiers
from headrace.memory.state_memory import StateMemory

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

    A step takes one token of every decoding sequence, several of those that jump, then pieces of prompts, then admits
    waiting sequences as far as slots, pages and budget go; prompts in the order of a policy (see ``ordering``). Who
    must go when pages run out is the roster's part.

    Steps are planned ahead: what is planned counts as computed, because an executor runs batches in order.

    Args:
        memory: Pages.
        limits: Bounds of a step.
        tiers: Where prefixes are kept beyond the arena; None: nowhere.
    """

    def __init__(self, memory: StateMemory, limits: SchedulerLimits, tiers: Tiers | None = None) -> None:
        self.memory = memory
        self.limits = limits
        self.cost = StepCost()
        self.shares = Shares(dict(limits.weights))
        self.roster = Roster(
            memory, tiers or Tiers(memory), self.cost, slots=limits.slots, step_tokens=limits.max_batch_tokens
        )
        self._order = Order(limits.policy, limits.first_token_seconds, memory, self.cost, self.shares)
        self._trials = Trials()
        self.constrained = 0  # sequences with a constraint

    @property
    def tiers(self) -> Tiers:
        """Where prefixes are kept beyond the arena."""
        return self.roster.tiers

    @property
    def waiting(self) -> list[Sequence]:
        """Who waits, by rank."""
        return self.roster.waiting

    @property
    def running(self) -> list[Sequence]:
        """Who runs, by rank."""
        return self.roster.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.shares.enter(sequence.tenant)
        self.roster.add(sequence)
        self.constrained += sequence.constraint is not None

    def remove(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Forget a sequence, ended or aborted, and free what it holds.

        Args:
            sequence: Which one.
            sound: Its full pages may stay cached; else nothing of its tokens may be found again.
        """
        self.roster.remove(sequence, share=sound)
        if not sound:
            self.roster.forget(sequence)
        self._trials.end(sequence)
        self.shares.leave(sequence.tenant)
        self.constrained -= sequence.constraint is not None
        sequence.finished = True

    def late(self, now: float) -> list[Sequence]:
        """Those whose request has waited beyond its deadline: what counts is its first sample."""
        return [s for s in self.waiting if s.deadline < now and (s.leader or s).first_scheduled is None]

    def prefill_tokens(self, priority: int) -> int:
        """Tokens that are to be computed before a new prompt of a priority.

        A sample that waits for its prompt will begin with the last token of it.
        """
        before = [s for s in self.roster.everyone() if s.priority <= priority and s.pending > 1]
        return sum(1 if self._waits_for_leader(s) else s.pending for s in before)

    def plan(self, step: int) -> Planned | None:
        """Decide the next step, on the understanding that those planned before it will have run.

        Returns:
            The step; None when there is nothing to run.
        """
        plan = Plan(pages=self.roster.take_exchanged())
        if self._trials.suspect:
            self._plan_trial(plan, self._trials.suspect)
        else:
            self._plan_all(plan)
        if not plan.counts:
            self.roster.give_back(plan.pages)
            if not self.tiers.needs_batch:
                return None
        planned = finish(step, plan, self.memory.commands())
        self.tiers.planned(step)
        for sequence, count in plan.counts.items():
            self.shares.serve(sequence.tenant, count)
            self.roster.planned(sequence, count)
        return planned

    # --- failures -----------------------------------------------------------------------------------------------

    def restart(self, suspects: list[Sequence]) -> None:
        """Begin anew after a step that failed, when nobody knows what pages and slots hold.

        Args:
            suspects: Those that were in the step. One after the other runs alone, up to its next token, before others
                run again; so only who is at fault fails.
        """
        self.roster.reset()
        self._trials.add(suspects)

    def clear(self, sequence: Sequence) -> None:
        """A suspect has drawn a token; it waits until all have been tried."""
        if self._trials.end(sequence) and self._trials.suspect:
            self.roster.requeue(sequence)

    def _plan_trial(self, plan: Plan, suspect: Sequence) -> None:
        if suspect.slot == NO_SLOT and not self.roster.start(plan, suspect):
            return
        if suspect.pending and not suspect.drawing:
            self._take_chunk(plan, suspect, self.limits.max_batch_tokens)

    # --- planning -----------------------------------------------------------------------------------------------

    def _plan_all(self, plan: Plan) -> None:
        self._plan_decode(plan)
        if self._somebody_may_start() or len(plan.counts) < len(self.running):
            now = time.monotonic()
            budget = self._prefill_budget(plan)
            self._plan_jumps(plan, budget)
            if self.tiers.present:
                self._fetch(self._order.sort(self.waiting, now)[:FETCHED])
            prompts = {s.priority for s in self.running if s.prefills}
            admitting = True
            # A prompt that is being computed makes way for a more urgent one that waits.
            for priority in sorted(prompts.union(s.priority for s in self.waiting)):
                self._plan_prefill(plan, budget, now, priority)
                admitting = admitting and self._admit(plan, budget, now, priority)

    def _somebody_may_start(self) -> bool:
        """Whether it is worth looking at the queue; while every slot is taken it mostly is not."""
        if not self.waiting:
            return False
        return self.roster.has_free_slot or self.tiers.present or self.waiting[0].priority < self.running[-1].priority

    def _plan_decode(self, plan: Plan) -> None:
        for sequence in self.running.copy():
            if sequence.slot == NO_SLOT or sequence.pending != 1 or sequence.complete or sequence.is_held_up:
                continue
            # Mostly there is room on the last page, which is quickly seen.
            if sequence.computed < sequence.held.reach or self.roster.grow(plan, sequence, 1):
                plan.counts[sequence] = 1

    def _prefill_budget(self, plan: Plan) -> policy.Budget:
        """What is left once every sequence that decodes, or jumps, has a token."""
        chunked = [s for s in self.running if s.prefills]
        decoding = [*plan.counts, *(s for s in self.running if s.jumps)]
        bounded = policy.prefill_budget(
            max_tokens=self.limits.max_batch_tokens,
            decode_rows=len(decoding),
            decode_pairs=sum(s.computed + 1 for s in decoding),
            context=chunked[0].computed if chunked else 0,
            max_seconds=self.limits.max_step_seconds,
            estimate=self.cost.estimate,
            granule=self.memory.page_tokens,
        )
        most_urgent = min((s.priority for s in decoding), default=None)
        return policy.Budget(max(self.limits.max_batch_tokens - len(decoding), 0), bounded, most_urgent)

    def _plan_jumps(self, plan: Plan, budget: policy.Budget) -> None:
        """Forced tokens come before prompts; one of each sequence always has room."""
        for sequence in [s for s in self.running if s.jumps and not s.is_held_up]:
            if sequence.slot == NO_SLOT:
                continue
            more = max(0, min(sequence.pending - 1, budget.left(sequence.priority)))
            if self.roster.grow(plan, sequence, 1 + more):
                plan.counts[sequence] = 1 + more
                budget.take(sequence.priority, more)

    def _plan_prefill(self, plan: Plan, budget: policy.Budget, now: float, priority: int) -> None:
        prompts = [s for s in self.running if s.prefills and s.priority == priority]
        for sequence in self._order.sort(prompts, now):
            left = budget.left(priority)
            if left > 0 and sequence.slot != NO_SLOT:
                budget.take(priority, self._take_chunk(plan, sequence, left))

    def _take_chunk(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        count = policy.chunk(sequence.computed, sequence.pending, budget, self.roster.places(sequence))
        if not self.roster.grow(plan, sequence, count):
            return 0
        plan.counts[sequence] = count
        return count

    def _admit(self, plan: Plan, budget: policy.Budget, now: float, priority: int) -> bool:
        """Start waiting sequences of a priority; whether less urgent ones may start behind them."""
        if not self.roster.has_free_slot and priority >= self.running[-1].priority:
            return False
        for sequence in self._order.sort([s for s in self.waiting if s.priority == priority], now):
            left = budget.left(priority)
            if left <= 0:
                return False
            if self._lost_some(sequence):
                self._ask(sequence)
            if sequence.preparing or sequence.is_fetching or self._waits_for_leader(sequence):
                continue
            if not self.roster.start(plan, sequence):
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
                self._ask(sequence)

    def _ask(self, sequence: Sequence) -> None:
        tokens = sequence.tokens[: sequence.known]
        sequence.cached_when_asked = self.memory.cached(sequence.root, tokens)
        sequence.fetch = self.tiers.fetch(sequence.root, tokens, self._recompute_seconds) or NOTHING

    def _lost_some(self, sequence: Sequence) -> bool:
        """Whether there was nothing to fetch for a sequence, but the arena has given up some of its prefix since."""
        if sequence.fetch is not NOTHING or not sequence.cached_when_asked:
            return False
        return self.memory.cached(sequence.root, sequence.tokens[: sequence.known]) < sequence.cached_when_asked

    def _recompute_seconds(self, start: int, end: int) -> float:
        return self.cost.prefill(start, end - start)

    def _waits_for_leader(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        if leader is None or leader.finished or not self.memory.prefix_cache:
            return False
        return leader.computed < leader.prompt_length

    def check(self) -> None:
        """Assert the invariants of queues, slots and pages."""
        self.roster.check()
        bound = sum(s.constraint is not None for s in self.roster.everyone())
        assert self.constrained == bound, "sequences with constraints are miscounted"
        assert all(s in self.roster.everyone() for s in self._trials.suspects), "a suspect is gone"
        self.shares.check(s.tenant for s in self.roster.everyone())
