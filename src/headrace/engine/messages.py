"""The records between gateway and replica: tokens in, tokens out, as msgpack over ZeroMQ.

Down: ``Generate``, ``Abort``, ``Inspect``, ``Drain``. Up: ``Hello`` once, then one ``StepReport`` a step, with a
``Beat`` from a thread of its own, so that a long step is not taken for a dead process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.engine.sampling_params import SamplingParams
from headrace.engine.timeline import Timeline
from headrace.runtime.batch import Pooling

FinishReason = Literal["stop", "length", "abort", "late", "error"]

CLOSE_SECONDS = 10.0  # that a replica takes at most to write prefixes to disk at its end


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Generate ``params.n`` samples after a prompt, or embed it.

    Attributes:
        request: Number chosen by the sender, unique while the replica lives.
        prompt: int32 little-endian token ids.
        params: Sampling parameters.
        received: Stamp of the request's arrival at the gateway.
        tokenized: Stamp of its tokenization.
        routed: Stamp of the choice of a replica.
        salt: Requests share cached prefixes only with requests of the same salt.
        tenant: Whose share of the engine it is served from.
        priority: Lower is more urgent; it may preempt what is less so.
        deadline: Stamp by which the first token is wanted; the request is refused as soon as that cannot be expected.
        pooling: An embedding of the prompt is wanted in place of tokens, made like this; of the parameters only ``n``
            then counts, which is 1.
    """

    request: int
    prompt: bytes
    params: SamplingParams
    received: float | None = None
    tokenized: float | None = None
    routed: float | None = None
    salt: str = ""
    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    pooling: Pooling | None = None

    @property
    def can_share_prompt(self) -> bool:
        """Whether a cached prefix may stand in for computing the prompt: not if something is wanted of each token."""
        return self.params.prompt_logprobs is None and self.pooling != "mean"


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The receiver is gone: stop these requests and free what they hold. Unknown numbers are ignored."""

    requests: list[int]


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Ask for a ``DebugState``."""

    check: bool = False


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Finish what is there, write what is to be kept to disk (in ``CLOSE_SECONDS``), and exit."""


class ReplicaInfo(msgspec.Struct, frozen=True):
    """What a replica says of itself at the start.

    Attributes:
        model: Name of the model.
        executor: Such as ``eager float32``.
        threads: Threads of the executor.
        context_length: Most tokens of a sequence (the model's limit, or what the KV memory holds if less).
        kv_tokens: Tokens that the KV memory holds.
        page_tokens: Tokens of a page.
        pages: Pages in all.
        vocab_size: Token ids are below it.
        max_running: Sequences that run at once.
        hidden_size: Numbers of an embedding.
    """

    model: str
    executor: str
    threads: int
    context_length: int
    kv_tokens: int
    page_tokens: int
    pages: int
    vocab_size: int
    max_running: int
    hidden_size: int


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The replica is loaded and takes requests."""

    info: ReplicaInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The replica cannot start, and starting it again would not help: a bad file or a bad option."""

    message: str


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and counters of the engine after a step; counters are totals since the replica's start.

    Attributes:
        step: Steps whose results are known.
        running: Sequences in slots.
        waiting: Sequences in the queue.
        pages_used: Pages that running sequences hold.
        pages_cached: Pages that only the prefix tree holds.
        pages_free: Pages that nobody holds.
        prompt_tokens: Prompt tokens of admitted sequences.
        cached_tokens: Those of them found in the prefix tree.
        tier_tokens: Tokens whose state was loaded from host memory or disk.
        output_tokens: Tokens that came out.
        masked_tokens: Those of them drawn where a constraint did not allow all.
        forced_tokens: Those of them not drawn, because a constraint allowed no others.
        preemptions: Sequences put back into the queue for want of pages.
        aborted: Requests aborted.
        step_seconds: Duration of the last step: from one batch's collection to the next one's.
        forward_seconds: The executor's time for its batch; the rest of the step is time outside the forward pass.
        host_seconds: Time that planning and looking at results took, hidden by the executor's work or not.
        ended: Stamp of the collection.
    """

    step: int = 0
    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tier_tokens: int = 0
    output_tokens: int = 0
    masked_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    step_seconds: float = 0.0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    ended: float = 0.0


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Raw log probabilities of one position: the token's, its rank, and the likeliest alternatives in order."""

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a sample ended.

    Attributes:
        reason: ``stop`` (end of sequence or grammar, stop token or stop string; an embedding), ``length``, ``abort``,
            ``late`` (refused, for the first token cannot be expected by its deadline) or ``error``.
        stop: The stop string or stop token id that ended it; None for end of sequence, or of what a grammar allows.
        hidden_tokens: Trailing output tokens (0 or 1) that ended it and are no part of the text.
        message: For ``error``.
        unfit: For ``error``: what was asked cannot be done, and asking again will not help.
        timeline: The stamps; the gateway's own are filled in.
    """

    reason: FinishReason
    stop: str | int | None = None
    hidden_tokens: int = 0
    message: str | None = None
    unfit: bool = False
    timeline: Timeline = Timeline()


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step added to one sample.

    Attributes:
        request: The request's number.
        index: Which of its n samples.
        tokens: New output tokens.
        logprobs: One entry a new token, where asked for.
        prompt_logprobs: Entries for prompt positions 1, 2, …; with the first delta, where asked for.
        cached_tokens: Prompt tokens that were not computed; with the first delta.
        finish: Set on the sample's last delta.
        embedding: float32 little-endian [hidden]; with the only delta of a prompt that was to be embedded.
    """

    request: int
    index: int = 0
    tokens: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None
    embedding: bytes | None = None


class StepReport(msgspec.Struct, frozen=True, tag=True):
    """All that a step produced: one message a step. Plain decode tokens travel as arrays.

    Attributes:
        requests: int64 little-endian [samples], of the samples that got exactly one plain token.
        indexes: int32 little-endian [samples].
        tokens: int32 little-endian [samples].
        deltas: Every other change (first tokens, log probabilities, ends).
        stats: Gauges after the step.
    """

    requests: bytes
    indexes: bytes
    tokens: bytes
    deltas: list[TokenDelta]
    stats: EngineStats


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Proof of life.

    Attributes:
        step: Steps run.
        step_age: Seconds since the running step began; 0 when idle.
    """

    step: int
    step_age: float


class DebugState(msgspec.Struct, frozen=True, tag=True):
    """Answer to ``Inspect``: slots, queue, pages and tree as plain data, no prompt text.

    Attributes:
        state: Plain JSON-like data.
        problems: What ``check()`` found, where it was asked for.
    """

    state: dict[str, object]
    problems: list[str] = []


Down = Generate | Abort | Inspect | Drain
Up = Hello | Failed | StepReport | Beat | DebugState
