"""From a conversation to the job that answers it, the same for every wire format."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput
from headrace.gateway.job import Job, JobTerms, Opened
from headrace.gateway.opening import aside
from headrace.gateway.services import Services
from headrace.gateway.tool_calls import ArgumentCheck
from headrace.text.conversation import Conversation
from headrace.text.prepared import Prepared


class AnswerTerms(JobTerms, Protocol):
    """What a request says of how it is answered."""

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``, ``max_tokens`` among them."""


class ConversationJob(NamedTuple):
    """A job, and what its caller is to be told.

    Attributes:
        job: The job.
        warnings: A sentence for each tool whose schema is not enforced, and for a form that binds nothing.
    """

    job: Job
    warnings: tuple[str, ...]


async def conversation_job(
    services: Services,
    opened: Opened[AnswerTerms],
    conversation: Conversation,
    *,
    fields: tuple[str, str],
    more_bytes: int = 0,
    names: Mapping[str, str] | None = None,
    may_be_cut: bool = False,
) -> ConversationJob:
    """Make the job that answers a conversation.

    Args:
        services: What routes work with.
        opened: The request that asks it.
        conversation: What is to be answered.
        fields: What the caller calls messages and ``max_tokens``.
        more_bytes: Of the conversation, that are not in the body.
        names: What the caller calls fields of the conversation, where it is something else.
        may_be_cut: ``max_tokens`` may be more than the context holds, which then ends the answer.

    Raises:
        InvalidInput: With the field.
        ApiError: 503, nothing is known of the model yet.
    """
    with in_words_of_caller(names or {}):
        prompt = await aside(opened.size + more_bytes, services.text.prompt, conversation)
        if services.text.is_prepared(conversation, prompt):
            prepared = services.text.prepare(conversation, prompt)
        else:
            prepared = await services.grammars.made(services.text.prepare, conversation, prompt)
    sampling = opened.request.sampling()
    endless = bool(sampling.get("min_tokens") or sampling.get("ignore_eos"))
    bounds = prepared.bounds(stops=bool(sampling.get("stop")), endless=endless)
    await services.grammars.check(bounds.grammar, prepared.field)
    params = SamplingParams(**sampling, grammar=bounds.grammar, reading=bounds.reading)
    explicit_max = None if may_be_cut else sampling["max_tokens"]
    services.generator.check(prepared.prompt, params, explicit_max=explicit_max, fields=fields)
    check = ArgumentCheck(prepared.unenforced(bounds))
    job = Job.of(opened, prepared.prompt, params, form=prepared.form, check=check)
    return ConversationJob(job, tuple(_warnings(conversation, prepared)))


def _warnings(conversation: Conversation, prepared: Prepared) -> Iterator[str]:
    for name, reason in prepared.relaxed.items():
        yield f"Arguments of tool {name!r} are not constrained: {reason}."
    if conversation.form_is_idle:
        yield f"'{conversation.answer.field}' binds nothing: a call is required, so there is no other answer."


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
