"""``Sequence``: one sample of one request while the engine has it. Only the engine writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.engine.constraint import TokenConstraint
from headrace.engine.messages import PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.memory.behind import Fetch
from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.state_memory import Holding
from headrace.runtime.batch import IntArray, Mask, SlotSampling

NO_SLOT = -1


class Drawn(NamedTuple):
    """A token that was drawn.

    Attributes:
        token: Its id.
        logprobs: Its log probability, if that is asked for.
        first: Whether it is the sample's first.
    """

    token: int
    logprobs: list[PositionLogprobs] | None
    first: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one request.

    The engine plans ``tokens[computed:]`` next. Their number, ``pending``, is 1 in decode, more in prefill, and
    after a preemption the output so far is prefilled again like a prompt. Steps are planned ahead: what a submitted
    batch computes counts as computed, and tokens that it draws, which nobody knows yet, as tokens::

        tokens   |------- prompt -------|-- output --|?       ``known`` tokens, 1 that is being drawn, room up to limit
        computed |---------------->                           their state is in the pages of ``held``, or on its way
        pending                    <-------- 15 ------>

    A constraint may force tokens, which are then known without being drawn; a batch on its way that draws the first of
    them finds what is known. The sequence *jumps* over them: they are computed together::

        before   |------- prompt -------|-- output --|?       pending 1: what is being drawn
        after    |------- prompt -------|-- output --|a b c   pending 3: a, which is being drawn, b and c
        computed |----------------------------------->

    Attributes:
        request: The request's number.
        index: Which of the request's samples.
        arrival: Order of arrival at the engine.
        params: The request's sampling parameters.
        sampling: The executor's part of them.
        stop_ids: Tokens that end the output.
        limit: Most tokens, prompt included; an embedding counts as one that is drawn.
        root: Of the prefix tree, where what it shares is kept.
        tenant: Whose share it is served from.
        priority: Lower is more urgent.
        deadline: Monotonic clock by which it is to be scheduled, or refused; infinite if it may wait.
        tokens: int32 [limit], prompt and output.
        known: How many of them are known.
        prompt_length: How many of them are prompt.
        can_share_prompt: A cached prefix may stand in for computing it.
        constraint: Stop strings and grammar, if any.
        mask: Tokens that may be drawn next; None: any.
        preparing: It has a constraint that is not ready; it is planned no further.
        drawn: What its constraint has yet to say of the token drawn last, which nobody was told of.
        leader: The request's first sample; the others wait until its prompt is in the prefix tree.
        slot: Executor slot, or ``NO_SLOT`` while waiting.
        held: Pages of its state.
        keep_at: Tokens after which its recurrent state is kept: there the prompt left what was cached.
        computed: Tokens whose state is in the pages once all submitted batches are done.
        drawing: Tokens that submitted batches draw.
        opened: How many tokens were known when it took its slot.
        explicit: The slot does not have what is pending, so the batch must say it; else that is the token drawn last.
        fetch: What is being loaded for it, or was, since it has been waiting; None: nothing was asked for.
        cached_when_asked: Tokens that the arena had of it when that was asked.
        stay: Counts the times that it left its slot; what a batch finds of an earlier stay is void.
        cached_tokens: Prompt tokens found in the prefix tree at first admission.
        prompt_logprobs: Collected until the prompt is done.
        received, tokenized, routed, queued, first_scheduled, prefill_done, first_token, last_token: Stamps, see
            ``Timeline``.
    """

    request: int
    index: int
    arrival: int
    params: SamplingParams
    sampling: SlotSampling
    stop_ids: frozenset[int]
    limit: int
    root: PrefixKey
    tenant: str
    priority: int
    deadline: float
    tokens: IntArray
    known: int
    prompt_length: int
    can_share_prompt: bool
    constraint: TokenConstraint | None
    leader: Sequence | None
    queued: float
    received: float | None = None
    tokenized: float | None = None
    routed: float | None = None
    mask: Mask | None = None
    preparing: bool = False
    drawn: Drawn | None = None
    slot: int = NO_SLOT
    held: Holding = field(default_factory=Holding)
    keep_at: int = 0
    computed: int = 0
    drawing: int = 0
    opened: int = 0
    explicit: bool = True
    fetch: Fetch | None = None
    cached_when_asked: int = 0
    stay: int = 0
    cached_tokens: int | None = None
    finished: bool = False
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    first_scheduled: float | None = None
    prefill_done: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    @property
    def pending(self) -> int:
        """Tokens still to plan before the next one can be drawn."""
        return self.known + self.drawing - self.computed

    @property
    def prefills(self) -> bool:
        """Whether, in its slot, it has several tokens to compute that were there when it took it."""
        return self.pending > 1 and self.computed < self.opened

    @property
    def jumps(self) -> bool:
        """Whether, in its slot, it has several tokens to compute that were forced since it took it."""
        return self.pending > 1 and self.computed >= self.opened

    def force(self, token: int) -> None:
        """Take a token that is the only one allowed; a batch that draws the next one will find it."""
        self.tokens[self.known] = token
        self.known += 1
        self.drawing = max(0, self.drawing - 1)
        self.explicit = self.pending > 1

    @property
    def is_held_up(self) -> bool:
        """Whether its constraint keeps it from a batch: what is allowed there is not known, or would hold up others."""
        constraint = self.constraint
        return constraint is not None and (self.preparing or (self.drawing > 0 and constraint.slow))

    @property
    def complete(self) -> bool:
        """Whether the tokens that are being drawn are its last, by its limit."""
        return self.known + self.drawing >= self.limit

    @property
    def output_length(self) -> int:
        """Tokens drawn."""
        return self.known - self.prompt_length

    @property
    def is_fetching(self) -> bool:
        """Whether a part of its prefix is on its way from a tier."""
        return self.fetch is not None and self.fetch.state == "loading"

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts those that must go on before those that may be preempted for them."""
        return self.priority, self.arrival
