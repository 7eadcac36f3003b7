"""``Roster``: who waits, who runs, in which slot, and on which pages."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable
from operator import attrgetter

from headrace.engine import policy
from headrace.engine.cost import StepCost
from headrace.engine.plan import Plan
from headrace.engine.sequence import NO_SLOT, Sequence
from headrace.memory.behind import Tiers
from headrace.memory.eviction import RecomputeCost
from headrace.memory.state_memory import Holding, RowWrite, StateMemory
from headrace.runtime.batch import PageWrite, SlotOpen

RANK = attrgetter("rank")
TYPICAL_PROMPT = 1024.0  # tokens, before any was seen
PROMPT_SHARE = 1 / 32  # of the last prompt in the mean


class Roster:
    """Moves sequences between the queue and slots, and gets them pages.

    When pages run out, the least urgent to arrive last goes back to the queue; its pages stay in the prefix tree until
    somebody needs them. The first in that order is never preempted for another, so some sequence always ends.

    Args:
        memory: Pages.
        tiers: Where prefixes are kept beyond the arena.
        cost: What steps take.
        slots: Most sequences that run at once.
        step_tokens: Most tokens of a step.
    """

    def __init__(self, memory: StateMemory, tiers: Tiers, cost: StepCost, *, slots: int, step_tokens: int) -> None:
        self.memory, self.tiers, self.cost = memory, tiers, cost
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # by rank
        self.preemptions = 0
        self._slots, self._step_tokens = slots, step_tokens
        self._prompt_tokens = TYPICAL_PROMPT  # mean of late
        self._free_slots = list(range(slots - 1, -1, -1))
        self._exchanged: list[tuple[Sequence, PageWrite]] = []  # rows of pages that changed since the last plan

    @property
    def has_free_slot(self) -> bool:
        """Whether one more could run."""
        return bool(self._free_slots)

    # --- in and out ---------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._prompt_tokens += PROMPT_SHARE * (sequence.prompt_length - self._prompt_tokens)
        bisect.insort(self.waiting, sequence, key=RANK)

    def remove(self, sequence: Sequence, *, share: bool) -> None:
        """Take a sequence off; whether what it has computed is offered to others."""
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence, share=share)

    def start(self, plan: Plan, sequence: Sequence) -> bool:
        """Move a sequence from the queue into a slot, with the cached part of its tokens; False if it must wait."""
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
        sequence.explicit, sequence.opened = True, sequence.known
        sequence.prompt_logprobs = []
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_length)
        plan.opens[sequence] = SlotOpen(sequence.slot, tokens, sequence.prompt_length, sequence.sampling)
        for group, row in enumerate(held.rows):
            if len(row):
                plan.pages.append((sequence, PageWrite(sequence.slot, 0, row, group)))
        return True

    def requeue(self, sequence: Sequence, *, share: bool = True) -> None:
        """Take a sequence out of its slot; it is computed anew, but for what of it is cached then."""
        self._leave(sequence, share=share)
        bisect.insort(self.waiting, sequence, key=RANK)

    def reset(self) -> None:
        """Begin anew: nobody knows what pages and slots hold."""
        for sequence in self.running.copy():
            self.requeue(sequence, share=False)
        self.tiers.reset()
        self.memory.reset()
        self._exchanged = []

    def forget(self, sequence: Sequence) -> None:
        """Let nobody find what is cached of a sequence that failed; whoever took some of that computes it anew."""
        root, tokens = sequence.root, sequence.tokens[: sequence.known]
        pages = self.memory.forget(root, tokens)
        self.tiers.forget(root, tokens, pages)
        for other in self.running.copy():
            if self.memory.has_any(other.held, pages):
                self.requeue(other, share=False)

    def _fork(self, sequence: Sequence, held: Holding) -> bool:
        """Take the prompt but for its last token, behind which it draws, from its leader; False if that cannot be."""
        leader, tokens = sequence.leader, sequence.prompt_length - 1
        if leader is None or leader.slot == NO_SLOT or leader.computed < tokens or sequence.known > tokens + 1:
            return False
        return self.memory.prefix_cache and self.memory.fork(leader.held, held, tokens)

    def _make_way(self, plan: Plan, sequence: Sequence, held: Holding) -> bool:
        """Whether a sequence can start, after less urgent ones have gone, if need be."""
        # With the one that its first decode step adds, if there is one.
        tokens = min(sequence.known + 1, sequence.limit - 1)

        def fits(spare: int) -> bool:
            return self.memory.fits(held, tokens, step_tokens=self._step_tokens, spare=spare)

        while not self._free_slots or not policy.may_admit(running=len(self.running), fits=fits):
            if not self.running or self.running[-1].priority <= sequence.priority:
                return False
            self._preempt(plan, self.running[-1])
        return True

    def _preempt(self, plan: Plan, sequence: Sequence) -> None:
        plan.drop(sequence)
        self.requeue(sequence)
        self.preemptions += 1

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

    # --- pages --------------------------------------------------------------------------------------------------

    def grow(self, plan: Plan, sequence: Sequence, count: int) -> bool:
        """Give a sequence pages for ``count`` more tokens, preempting others if need be; False if it had to go."""
        while (writes := self.memory.grow(sequence.held, sequence.computed + count)) is None:
            victim = self.running[-1]
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        plan.pages += [(sequence, _page_write(sequence, write)) for write in writes]
        return True

    def places(self, sequence: Sequence) -> policy.Places | None:
        """Where the states of a prompt are kept; None if there are none."""
        if not self.memory.has_states:
            return None
        step_seconds, per_token, per_1000_pairs = self.cost.coefficients
        token_seconds = per_token + per_1000_pairs / 1000 * self._prompt_tokens / 2
        spacing = self.memory.snapshot_spacing(step_seconds, token_seconds, self._prompt_tokens)
        return policy.Places(self.memory.page_tokens, spacing, sequence.keep_at)

    def take_exchanged(self) -> list[tuple[Sequence, PageWrite]]:
        """Rows of pages that changed since the last call, with their owners."""
        exchanged, self._exchanged = self._exchanged, []
        return exchanged

    def give_back(self, exchanged: list[tuple[Sequence, PageWrite]]) -> None:
        """No batch takes these rows yet."""
        self._exchanged = exchanged

    def planned(self, sequence: Sequence, count: int) -> None:
        """Count a row of a planned step as done; offer the prompt to others once all of it is."""
        if sequence.first_scheduled is None:
            sequence.first_scheduled = time.monotonic()
        if sequence.pending == count:
            sequence.drawing += 1
            sequence.explicit = False
        in_prompt = sequence.computed < sequence.prompt_length
        sequence.computed += count
        windows, places = self.memory.has_windows, self.places(sequence) if in_prompt else None
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

    def everyone(self) -> Iterable[Sequence]:
        """All that run, and all that wait."""
        return (*self.running, *self.waiting)

    def check(self) -> None:
        """Assert the invariants of queues, slots and pages."""
        slots = [s.slot for s in self.running]
        assert NO_SLOT not in slots, "a running sequence has no slot"
        assert sorted(slots + self._free_slots) == list(range(self._slots)), "a slot is lost or shared"
        assert all(s.slot == NO_SLOT and not s.held.rows for s in self.waiting), "a waiting sequence holds something"
        for queue in (self.waiting, self.running):
            assert [s.rank for s in queue] == sorted({s.rank for s in queue}), "a queue is out of order"
        for sequence in self.running:
            assert self.memory.holds(sequence.held, sequence.computed), "a sequence computed more than its pages hold"
            assert sequence.computed < sequence.known + sequence.drawing, "a token was computed that is not there"
            in_slot = sequence.pending == 1 and sequence.computed >= sequence.opened
            assert sequence.explicit or in_slot, "a slot does not have the tokens that come next"
            assert not (sequence.explicit and sequence.drawing), "a token is drawn behind one that is not computed"
            held_up = sequence.preparing and sequence.drawn is not None and not sequence.drawing
            assert held_up or not sequence.preparing, "a sequence runs whose constraint is not ready"
        self.tiers.check(s.held for s in self.running)


def _page_write(sequence: Sequence, write: RowWrite) -> PageWrite:
    return PageWrite(sequence.slot, write.start, write.handles, write.group)
