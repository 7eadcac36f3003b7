"""From the engine's token deltas to text: ``RequestCollector`` follows one request."""

from __future__ import annotations

from headrace.engine import messages
from headrace.engine.embedding import to_vector
from headrace.engine.messages import Finish, TokenDelta
from headrace.engine.timeline import merged
from headrace.errors import EngineError
from headrace.llm.inputs import Job
from headrace.llm.outputs import (
    CompletionDelta,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PositionLogprobs,
    RequestOutput,
)
from headrace.text.call_ids import CallIds
from headrace.text.formats.pieces import MessagePiece, calls_in, reasoning_of, text_of
from headrace.text.stream import MessageStream
from headrace.text.tokenizer import Tokenizer


class RequestCollector:
    """All samples of one request, as they come.

    Args:
        tokenizer: Of the model.
        job: What runs.
        request_id: What the caller calls it.
    """

    def __init__(self, tokenizer: Tokenizer, job: Job, request_id: str) -> None:
        self._tokenizer = tokenizer
        self._job = job
        self._request_id = request_id
        self._samples = [_Sample(tokenizer, job) for _ in range(job.params.n)]
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._cached_tokens = 0

    def push(self, delta: TokenDelta) -> CompletionDelta:
        """Take what a step added; returns it with its text."""
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = [None, *(self._position(p) for p in delta.prompt_logprobs)]
        if delta.cached_tokens is not None and delta.index == 0:
            self._cached_tokens = delta.cached_tokens
        wanted = self._job.params.logprobs is not None
        logprobs = [self._position(p) for p in delta.logprobs or ()] if wanted else None
        return self._samples[delta.index].push(delta, logprobs)

    def error(self) -> str | None:
        """What went wrong with the first sample that failed, or None."""
        finishes = (sample.finish for sample in self._samples)
        return next((f.message or "unknown" for f in finishes if f is not None and f.reason == "error"), None)

    def output(self) -> RequestOutput:
        """The request's result, when all samples have ended."""
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._job.prompt.text,
            prompt_token_ids=list(self._job.prompt.tokens),
            prompt_logprobs=self._prompt_logprobs,
            outputs=[sample.output(index) for index, sample in enumerate(self._samples)],
            finished=True,
            num_cached_tokens=self._cached_tokens,
            metrics=merged(s.finish.timeline for s in self._samples if s.finish is not None),
        )

    def _position(self, entry: messages.PositionLogprobs) -> PositionLogprobs:
        text = self._tokenizer.token_text
        position = {entry.token: Logprob(entry.logprob, entry.rank, text(entry.token))}
        for rank, (token, logprob) in enumerate(entry.top, start=1):
            position.setdefault(token, Logprob(logprob, rank, text(token)))
        return position


def embedding_output(job: Job, delta: TokenDelta, *, normalize: bool) -> EmbeddingRequestOutput:
    """A prompt's embedding, from the only delta of its request.

    Raises:
        EngineError: The engine failed on it.
    """
    if delta.embedding is None:
        raise EngineError(f"the engine failed: {'unknown' if delta.finish is None else delta.finish.message}")
    return EmbeddingRequestOutput(
        request_id=str(delta.request),
        outputs=EmbeddingOutput(to_vector(delta.embedding, normalize=normalize).tolist()),
        prompt_token_ids=list(job.prompt.tokens),
        finished=True,
        num_cached_tokens=delta.cached_tokens or 0,
    )


class _Sample:
    """One sample so far."""

    def __init__(self, tokenizer: Tokenizer, job: Job) -> None:
        self._stream = MessageStream.following(tokenizer, job.params, job.form)
        self._ids = CallIds.of(job.form)
        self._pieces: list[MessagePiece] = []
        self._tokens: list[int] = []
        self._logprobs: list[PositionLogprobs] | None = None if job.params.logprobs is None else []
        self.finish: Finish | None = None

    def push(self, delta: TokenDelta, logprobs: list[PositionLogprobs] | None) -> CompletionDelta:
        finish = delta.finish
        hidden = finish.hidden_tokens if finish is not None else 0
        cut = finish is not None and finish.reason != "stop"
        pieces = self._stream.take(delta.tokens, hidden=hidden, last=finish is not None, cut=cut)
        pieces = pieces if self._ids is None else self._ids.given(pieces)
        self._pieces += pieces
        self._tokens += delta.tokens
        if self._logprobs is not None:
            self._logprobs += logprobs or []
        self.finish = finish
        return CompletionDelta(
            index=delta.index,
            text=text_of(pieces),
            reasoning=reasoning_of(pieces),
            tool_calls=calls_in(pieces),
            token_ids=list(delta.tokens),
            logprobs=logprobs,
            finish_reason=finish.reason if finish is not None else None,
            stop_reason=finish.stop if finish is not None else None,
            timings=finish.timeline.durations(len(self._tokens)) if finish is not None else None,
        )

    def output(self, index: int) -> CompletionOutput:
        finish, logprobs = self.finish or Finish("abort"), self._logprobs
        chosen = None if logprobs is None else zip(self._tokens, logprobs, strict=True)
        return CompletionOutput(
            index=index,
            text=text_of(self._pieces),
            reasoning=reasoning_of(self._pieces),
            tool_calls=calls_in(self._pieces),
            token_ids=self._tokens,
            cumulative_logprob=None if chosen is None else sum(entry[token].logprob for token, entry in chosen),
            logprobs=logprobs,
            finish_reason=finish.reason,
            stop_reason=finish.stop,
            timings=finish.timeline.durations(len(self._tokens)),
            error=finish.message,
        )
