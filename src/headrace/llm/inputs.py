"""From what callers pass to checked jobs. Whatever is wrong is found here, before anything runs."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import numpy as np

from headrace.engine.messages import ReplicaInfo
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.validation import check_request
from headrace.errors import ConstraintError, InvalidInput
from headrace.llm.conversations import AnswerOptions, ChatOptions, Message, asked_by, form_of
from headrace.runtime.batch import Pooling
from headrace.text.conversation import Conversation
from headrace.text.model_text import ModelText
from headrace.text.prepared import Prepared
from headrace.text.prompt import Prompt, text_prompt, token_prompt
from headrace.text.stream import MessageForm

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""

_PROMPT_KEYS = ("prompt", "prompt_token_ids")


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt that the engine can run.

    Attributes:
        prompt: Its tokens.
        params: How to sample.
        form: How the answer is to be taken apart; None: it is plain text.
        received: Stamp of the call.
        tokenized: Stamp of the tokenization.
        pooling: An embedding is wanted, made like this; None: samples.
    """

    prompt: Prompt
    params: SamplingParams
    form: MessageForm | None
    received: float
    tokenized: float
    pooling: Pooling | None = None


class JobMaker:
    """Makes jobs for one model.

    Args:
        text: What the model reads and writes.
        info: What the engine can run.
        try_grammar: Compiles a grammar, or raises ``ConstraintError``.
    """

    def __init__(self, text: ModelText, info: ReplicaInfo, try_grammar: Callable[[str], None]) -> None:
        self._text = text
        self._info = info
        self._try_grammar = try_grammar

    def prompts(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: AnswerOptions,
    ) -> list[Job]:
        """One job a prompt.

        Raises:
            InvalidInput: With the field, such as ``prompts[2].prompt_token_ids[5]``.
        """
        named = _split(prompts, "prompts", _is_prompt, "a text, a list of token ids or a dictionary")
        return self._jobs(named, params, self._prompts_bound_by(options))

    def embeddings(self, prompts: PromptInput | Sequence[PromptInput], pooling: Pooling) -> list[Job]:
        """One job a prompt, for its embedding.

        Raises:
            InvalidInput: With the field, as for ``prompts``.
        """
        if pooling not in get_args(Pooling):
            raise InvalidInput(f"must be 'mean' or 'last', got {pooling!r:.80}", field="pooling")
        named = _split(prompts, "prompts", _is_prompt, "a text, a list of token ids or a dictionary")
        return self._jobs(named, None, self._prompts_bound_by({}), pooling)

    def prompt(self, prompt: PromptInput, params: SamplingParams | None, options: AnswerOptions) -> Job:
        """The job of one prompt.

        Raises:
            InvalidInput: With the field, such as ``prompt``.
        """
        return self._jobs([("prompt", prompt)], params, self._prompts_bound_by(options))[0]

    def chats(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: ChatOptions,
    ) -> list[Job]:
        """One job a conversation.

        Raises:
            InvalidInput: With the field, such as ``messages[0].content``, or ``messages[2][0].content`` where
                several conversations were given.
        """
        named = _split(messages, "messages", _is_conversation, "a list of messages")
        return self._jobs(named, params, functools.partial(self._chat, asked_by(options)))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None, options: ChatOptions) -> Job:
        """The job of one conversation.

        Raises:
            InvalidInput: With the field, such as ``messages[0].content``.
        """
        return self._jobs([("messages", messages)], params, functools.partial(self._chat, asked_by(options)))[0]

    def _jobs(
        self,
        named: list[tuple[str, Any]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        prepare: Callable[[Any, str], Prepared],
        pooling: Pooling | None = None,
    ) -> list[Job]:
        received = time.monotonic()
        each = _params_for(params, len(named))
        jobs = []
        for (field, value), (params_field, own) in zip(named, each, strict=True):
            made = prepare(value, field)
            bound = self._bound(own, made, params_field)
            self._check(made.prompt, bound, field, params_field, answered=pooling is None)
            jobs.append(Job(made.prompt, bound, made.form, received, time.monotonic(), pooling))
        return jobs

    def _chat(self, asked: Conversation, messages: Sequence[Message], field: str) -> Prepared:
        conversation = dataclasses.replace(asked, messages=messages)
        try:
            return self._text.prepare(conversation, self._text.prompt(conversation))
        except InvalidInput as error:
            name = error.field or "messages"
            raise error.renamed(field + name[len("messages") :] if name.startswith("messages") else name) from None

    def _prompts_bound_by(self, options: AnswerOptions) -> Callable[[PromptInput, str], Prepared]:
        """What prepares a prompt whose answer must look like this."""
        form = form_of(options)
        grammar = self._text.answer_grammar(form)
        return lambda value, field: Prepared.plain(self._prompt(value, field), grammar, form.field)

    def _prompt(self, value: PromptInput, field: str) -> Prompt:
        text: Any = value if isinstance(value, str) else None
        tokens: Any = None if isinstance(value, str | Mapping) else value
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in _PROMPT_KEYS]
            if unknown or not value:
                what = f"has an unknown key {unknown[0]!r}" if unknown else "is empty"
                raise InvalidInput(f"the dictionary {what}; it holds 'prompt' or 'prompt_token_ids'", field=field)
            text, tokens = value.get("prompt"), value.get("prompt_token_ids")
            field = f"{field}.{'prompt' if tokens is None else 'prompt_token_ids'}"
        try:
            if tokens is None:
                return text_prompt(self._text.tokenizer, text, field=field)
            if not isinstance(tokens, Sequence | np.ndarray) or isinstance(tokens, str | bytes):
                raise InvalidInput("must be a list of token ids", field=field)
            made = token_prompt(self._text.tokenizer, tokens, field=field, vocab_size=self._info.vocab_size)
        except InvalidInput as error:
            raise error.renamed(error.field or field) from None
        return Prompt(made.tokens, text if isinstance(text, str) else None)

    def _bound(self, params: SamplingParams, made: Prepared, params_field: str) -> SamplingParams:
        """The parameters, with what binds the answer."""
        for name in ("grammar", "reading"):
            if getattr(params, name) is not None:
                message = "is the engine's own form; give regex, choice or grammar to the call instead"
                raise InvalidInput(message, field=f"{params_field}.{name}")
        endless = bool(params.min_tokens or params.ignore_eos)
        bounds = made.bounds(stops=bool(params.stop), endless=endless)
        try:
            bound = msgspec.structs.replace(params, grammar=bounds.grammar, reading=bounds.reading)
        except InvalidInput as error:
            raise error.renamed(f"{params_field}.{error.field}") from None
        try:
            if bounds.grammar is not None:
                self._try_grammar(bounds.grammar)
        except ConstraintError as error:
            raise InvalidInput(f"what the answer is to follow cannot be used: {error}", field=made.field) from None
        return bound

    def _check(self, prompt: Prompt, params: SamplingParams, field: str, params_field: str, *, answered: bool) -> None:
        info = self._info
        try:
            params.check_vocabulary(info.vocab_size)
        except InvalidInput as error:
            raise error.renamed(f"{params_field}.{error.field}") from None
        tokens = np.asarray(prompt.tokens, np.int32)
        try:
            check_request(
                tokens,
                params,
                vocab_size=info.vocab_size,
                context_length=info.context_length,
                field=field,
                answered=answered,
            )
        except InvalidInput as error:
            raise error.renamed(error.field or field) from None


def _split(value: Any, field: str, is_one: Callable[[Any], bool], wanted: str) -> list[tuple[str, Any]]:
    """A single input or a list of them, as a list, each with the name that errors call it."""
    if is_one(value):
        return [(field, value)]
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise InvalidInput(f"must be {wanted}, or a list of such, got {type(value).__name__}", field=field)
    return [(f"{field}[{i}]", one) for i, one in enumerate(value)]


def _is_prompt(value: object) -> bool:
    if isinstance(value, str | Mapping):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], int | np.integer)


def _is_conversation(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def _params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[tuple[str, SamplingParams]]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [("sampling_params", params)] * count
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise InvalidInput("must be a SamplingParams, or a list with one a prompt", field="sampling_params")
    if len(params) != count:
        raise InvalidInput(f"there are {len(params)} for {count} prompts", field="sampling_params")
    return [(f"sampling_params[{i}]", one) for i, one in enumerate(params)]
