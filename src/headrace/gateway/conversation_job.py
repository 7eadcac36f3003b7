"""From a conversation to the job that answers it, the same for every wire format."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request

from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput
from headrace.gateway.answer import tokenized
from headrace.gateway.generation import Job, JobTerms
from headrace.gateway.http import until_disconnected
from headrace.gateway.services import Services
from headrace.gateway.tool_calls import ArgumentCheck
from headrace.text.conversation import Conversation
from headrace.text.stream import MessageForm


class ConversationJob(NamedTuple):
    """A job, and what its caller is to be told.

    Attributes:
        job: The job.
        warnings: A sentence for each tool whose schema is not enforced.
    """

    job: Job
    warnings: tuple[str, ...]


async def conversation_job(
    services: Services,
    conversation: Conversation,
    sampling: Mapping[str, Any],
    terms: JobTerms,
    *,
    size: int,
    received: float,
    http: Request,
    fields: tuple[str, str],
    names: Mapping[str, str] | None = None,
    may_be_cut: bool = False,
) -> ConversationJob:
    """Make the job that answers a conversation.

    Args:
        services: What routes work with.
        conversation: What is to be answered.
        sampling: Keyword arguments for ``SamplingParams``, ``max_tokens`` among them.
        terms: On what terms it is served.
        size: Bytes of the body.
        received: Stamp of the arrival.
        http: The request itself.
        fields: What the caller calls messages and ``max_tokens``.
        names: What the caller calls fields of the conversation, where it is something else.
        may_be_cut: ``max_tokens`` may be more than the context holds, which then ends the answer.

    Raises:
        InvalidInput: With the field.
        ApiError: 503, nothing is known of the model yet.
        ClientDisconnect: The client went away.
    """
    with in_words_of_caller(names or {}):
        prepared = await tokenized(size, services.text.prepare, conversation)
    grammar = prepared.grammar
    if conversation.is_free and (sampling.get("min_tokens") or sampling.get("ignore_eos")):
        grammar = None  # which would end the answer where it says
    tried = services.grammars.check(grammar, "tools" if conversation.tools else conversation.answer.field)
    await until_disconnected(http, tried)
    form = (
        None if prepared.reading is None else MessageForm(services.text.format, prepared.reading, conversation.call_ids)
    )
    # The replica reads the answer only where stop strings are to be found in it.
    reading = form.reading.packed() if form is not None and sampling.get("stop") else None
    params = SamplingParams(**sampling, grammar=grammar, reading=reading)
    explicit_max = None if may_be_cut else sampling["max_tokens"]
    services.generator.check(prepared.prompt, params, explicit_max=explicit_max, fields=fields)
    check = ArgumentCheck(prepared.unenforced if grammar is not None else conversation.schemas)
    job = Job.of(terms, prepared.prompt, params, received, http.state.tenant, form, check)
    warnings = tuple(
        f"Arguments of tool {name!r} are not constrained: {reason}." for name, reason in prepared.relaxed.items()
    )
    return ConversationJob(job, warnings)


@contextmanager
def in_words_of_caller(names: Mapping[str, str]) -> Generator[None]:
    """Give errors the caller's names of fields.

    Args:
        names: From the name of a field in a conversation to the caller's; also of all that is in it.
    """
    try:
        yield
    except InvalidInput as error:
        for name, theirs in names.items():
            if error.field is not None and (error.field == name or error.field.startswith((f"{name}.", f"{name}["))):
                raise error.renamed(theirs) from error
        raise
