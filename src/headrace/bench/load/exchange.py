"""One request while it runs: what was planned, and the moments at which things were seen."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import nan

import msgspec

from headrace.bench.load.events import DONE, Chunk, EventSplitter, OversizedEvent, decode_chunk, error_message
from headrace.bench.results.result_file import MOST_SECONDS
from headrace.bench.results.samples import UNKNOWN

MOST_TOKENS = 10_000_000  # a count above is none, and many of it would not add up in 64 bits


class Exchange:
    """A request and its streamed answer. All moments are of one monotonic clock, seconds.

    Attributes:
        session: Number of its session.
        turn: Number of the turn in it.
        due: When it was to be sent.
        sent: When the generator began to send it.
        end: When the answer ended, well or not.
        planned_prompt: Prompt tokens sent, or ``UNKNOWN``.
        planned_output: Tokens asked for.
        prompt_tokens: As the server counts, or ``UNKNOWN``.
        output_tokens: As the server counts, or ``UNKNOWN``.
        cached_tokens: As the server counts, or ``UNKNOWN``.
        queue: Seconds in the server's queue, or NaN.
        error: Kind of error, or empty.
        message: What the server said of it.
        events: Moments of the output events.
        texts: With ``keep``, the pieces of the answer's text.
        token_ids: With ``keep``, the answer's token ids, as far as the server tells them.

    Args:
        session: As above.
        turn: As above.
        due: As above.
        planned_prompt: As above.
        planned_output: As above.
        keep: Whether to keep the answer.
        on_end: Called once, when it has ended.
    """

    __slots__ = (
        "_counted_ids",
        "_finished",
        "_on_end",
        "_splitter",
        "cached_tokens",
        "due",
        "end",
        "error",
        "events",
        "keep",
        "message",
        "output_tokens",
        "planned_output",
        "planned_prompt",
        "prompt_tokens",
        "queue",
        "sent",
        "session",
        "texts",
        "token_ids",
        "turn",
    )

    def __init__(
        self,
        session: int,
        turn: int,
        due: float,
        planned_prompt: int,
        planned_output: int,
        *,
        keep: bool,
        on_end: Callable[[Exchange], None],
    ) -> None:
        self.session = session
        self.turn = turn
        self.due = due
        self.sent = nan
        self.end = nan
        self.planned_prompt = planned_prompt
        self.planned_output = planned_output
        self.prompt_tokens = UNKNOWN
        self.output_tokens = UNKNOWN
        self.cached_tokens = UNKNOWN
        self.queue = nan
        self.error = ""
        self.message = ""
        self.events = array("d")
        self.keep = keep
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self._counted_ids = 0
        self._finished = False
        self._splitter = EventSplitter()
        self._on_end: Callable[[Exchange], None] | None = on_end

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._on_end is None

    def forget_answer(self) -> None:
        """The answer is not needed any more."""
        self.texts, self.token_ids = [], []

    def body(self, data: bytes, now: float) -> None:
        """Take bytes of the answer's body that arrived at ``now``; not called again once this has ended it."""
        try:
            for event in self._splitter.feed(data):
                if event == DONE:
                    self._finished = True
                else:
                    self._chunk(decode_chunk(event), now)
                if self.ended:
                    return
        except (msgspec.DecodeError, OversizedEvent, RecursionError) as error:
            self.fail("protocol", now, f"the stream is not in OpenAI's form: {error}")

    def _chunk(self, chunk: Chunk, now: float) -> None:
        if chunk.failed:
            self.fail("error in stream", now, error_message(bytes(chunk.error)))
            return
        output = False
        for choice in chunk.choices or ():
            output = output or choice.has_output
            if choice.finish_reason:
                self._finished = True
            if choice.token_ids:
                self._counted_ids += len(choice.token_ids)
            if self.keep:
                said = choice.text if choice.delta is None else choice.delta.content
                self._keep(said, choice.token_ids)
        if output:
            self.events.append(now)
        if chunk.usage is not None:
            usage = chunk.usage
            self.prompt_tokens = known(usage.prompt_tokens, self.prompt_tokens)
            self.output_tokens = known(usage.completion_tokens, self.output_tokens)
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = known(usage.prompt_tokens_details.cached_tokens, self.cached_tokens)
        if chunk.timings is not None and (queue := chunk.timings.queue) is not None and 0 <= queue <= MOST_SECONDS:
            self.queue = queue

    def _keep(self, text: str | None, token_ids: list[int] | None) -> None:
        if text:
            self.texts.append(text)
        if token_ids:
            self.token_ids += token_ids

    def complete(self, now: float) -> None:
        """The answer's last byte has come."""
        if not self._finished:
            self.fail("truncated", now, "the stream ended without a finish_reason or [DONE]")
            return
        if self.output_tokens == UNKNOWN and self._counted_ids:
            self.output_tokens = self._counted_ids
        self._over(now)

    def lost(self, now: float) -> None:
        """The connection was closed before the answer's end; after ``[DONE]`` that is its end."""
        if self._finished:
            self.complete(now)
        else:
            self.fail("disconnected", now, "the server closed the connection before the end of the answer")

    def fail(self, kind: str, now: float, message: str) -> None:
        """End it with an error."""
        if not self.ended:
            self.error = kind
            self.message = message
            self._over(now)

    def _over(self, now: float) -> None:
        on_end = self._on_end
        if on_end is not None:
            self._on_end = None
            self.end = now
            on_end(self)


def known(count: int | None, otherwise: int = UNKNOWN) -> int:
    """A count as a server tells it, if it tells one that can be."""
    return count if count is not None and 0 <= count <= MOST_TOKENS else otherwise
