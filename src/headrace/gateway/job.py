"""``Opened``: a request as it came in; ``Job``: as the engine is asked it; ``SampleDelta``: what comes back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headrace.api.parsing import warning_header
from headrace.engine.messages import Finish, PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.tool_calls import NOTHING_TO_CHECK, ArgumentCheck
from headrace.runtime.batch import Pooling
from headrace.text.formats.pieces import MessagePiece, text_of
from headrace.text.prompt import Prompt
from headrace.text.stream import MessageForm

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Opened(Generic[R_co]):
    """A request that may be served.

    Attributes:
        request: The request.
        warnings: A sentence for each field that was ignored.
        size: Bytes of the body.
        received: Stamp of the arrival.
        tenant: Owner of the key that was shown; None: there are no keys.
    """

    request: R_co
    warnings: tuple[str, ...]
    size: int
    received: float
    tenant: str | None

    def headers(self, more: Sequence[str] = ()) -> dict[str, str]:
        """The header that tells the warnings, and ``more`` of them, if there are any."""
        header = warning_header((*self.warnings, *more))
        return {} if header is None else {"X-Headrace-Warning": header}


class JobTerms(Protocol):
    """On what terms a request is served; every request body has them."""

    @property
    def cache_salt(self) -> str | None:
        """Prefixes are shared only with requests of the same salt."""

    @property
    def user(self) -> str | None:
        """The caller's label of its end user."""

    @property
    def urgency(self) -> int:
        """Lower is more urgent."""

    @property
    def deadline_ms(self) -> float | None:
        """Milliseconds within which the first token is wanted."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that may be run.

    Attributes:
        prompt: Its tokens.
        params: How to sample.
        received: Stamp of the arrival.
        tokenized: Stamp of the tokenization.
        salt: Root of the prefix tree.
        tenant: Whose share of the engine it is served from.
        priority: Lower is more urgent.
        deadline: Stamp by which the first token is wanted, or the request is to be refused.
        form: How the answer is taken apart; None: it is plain text.
        check: Judges the arguments of calls.
        pooling: An embedding is wanted, made like this; None: an answer.
    """

    prompt: Prompt
    params: SamplingParams
    received: float
    tokenized: float
    salt: str = ""
    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    form: MessageForm | None = None
    check: ArgumentCheck = NOTHING_TO_CHECK
    pooling: Pooling | None = None

    @classmethod
    def of(
        cls,
        opened: Opened[JobTerms],
        prompt: Prompt,
        params: SamplingParams,
        *,
        form: MessageForm | None = None,
        check: ArgumentCheck = NOTHING_TO_CHECK,
        pooling: Pooling | None = None,
    ) -> Job:
        """The job of a request whose prompt was just tokenized.

        Owners of keys share no prefixes with each other. Without keys a request's ``user`` is the tenant, which is no
        more than what the caller says, and prefixes are shared by all.
        """
        request, tenant = opened.request, opened.tenant
        salt = request.cache_salt or ""
        return cls(
            prompt,
            params,
            opened.received,
            time.monotonic(),
            salt=salt if tenant is None else f"{tenant}\n{salt}",
            tenant=tenant if tenant is not None else request.user or "",
            priority=request.urgency,
            deadline=None if request.deadline_ms is None else opened.received + request.deadline_ms / 1000,
            form=form,
            check=check,
            pooling=pooling,
        )


@dataclass(frozen=True, slots=True)
class SampleDelta:
    """What a step added to a sample.

    Attributes:
        choice: Which of the answer's choices: sample ``s`` of job ``j`` is choice ``j * n + s``.
        pieces: New text, reasoning and calls; may be none while something is incomplete.
        tokens: New tokens, all of them.
        logprobs: One entry a new token that is part of the text, where asked for.
        prompt_logprobs: With the first delta, where asked for.
        cached_tokens: With the first delta.
        finish: With the last delta.
        reasoning_tokens: How many of all tokens so far were reasoning.
        embedding: With the only delta of an embedding; see ``TokenDelta``.
    """

    choice: int
    pieces: list[MessagePiece]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None
    reasoning_tokens: int = 0
    embedding: bytes | None = None

    @property
    def text(self) -> str:
        """The new part of the answer itself."""
        return text_of(self.pieces)
