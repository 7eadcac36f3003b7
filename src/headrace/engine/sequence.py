"""``Sequence``: one sample of one request while the engine has it. Only the engine writes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.constraint import TokenConstraint
from headrace.engine.messages import PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.memory.state_memory import Holding
from headrace.runtime.batch import SlotSampling

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one request.

    The engine computes ``tokens[computed:]`` next. Their number, ``pending``, is 1 in decode, more in prefill, and
    after a preemption the output so far is prefilled again like a prompt::

        tokens   |------- prompt -------|-- output --|
        computed |---------------->                        their state is in the pages of ``held``
        pending                    <-------- 14 ----->

    Attributes:
        request: The request's number.
        index: Which of the request's samples.
        arrival: Order of arrival at the engine; earlier ones are served first and preempted last.
        params: The request's sampling parameters.
        sampling: The executor's part of them.
        stop_ids: Tokens that end the output.
        limit: Most tokens, prompt included.
        salt: Root of the prefix tree.
        tokens: Prompt and output.
        prompt_length: How many of them are prompt.
        constraint: Stop strings, if any.
        leader: The request's first sample; the others wait until its prompt is in the prefix tree.
        slot: Executor slot, or ``NO_SLOT`` while waiting.
        held: Pages of its state.
        computed: Tokens whose state is in the pages.
        fresh_slot: The slot was opened for the batch in planning; it has drawn no token yet.
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
    salt: str
    tokens: list[int]
    prompt_length: int
    constraint: TokenConstraint | None
    leader: Sequence | None
    queued: float
    received: float | None = None
    tokenized: float | None = None
    routed: float | None = None
    slot: int = NO_SLOT
    held: Holding = field(default_factory=Holding)
    computed: int = 0
    fresh_slot: bool = False
    cached_tokens: int | None = None
    finished: bool = False
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    first_scheduled: float | None = None
    prefill_done: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    @property
    def pending(self) -> int:
        """Tokens still to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def output_length(self) -> int:
        """Tokens drawn."""
        return len(self.tokens) - self.prompt_length

    @property
    def can_share_prompt(self) -> bool:
        """Whether a cached prefix may stand in for computing the prompt: not if its log probabilities are asked."""
        return self.sampling.prompt_logprobs is None
