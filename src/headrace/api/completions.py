"""``CompletionRequest``: the body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from headrace.api.fields import MAX_LOGPROBS, refused
from headrace.api.prompts import Prompts, one_by_one
from headrace.api.sampling import SamplingFields

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``/v1/completions`` (OpenAI API reference, "Create completion", plus extensions)."""

    prompt: Annotated[
        Prompts,
        Meta(
            description="A string, a list of strings, a list of token ids, or a list of lists of token ids.",
            examples=["Once upon a time"],
        ),
    ]
    echo: Annotated[bool | None, Meta(description="Return the prompt before the completion.")] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(
            description="Return the log probability of each output token and of that many likeliest tokens; with echo, "
            "of the prompt's tokens too."
        ),
    ] = None
    best_of: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Choosing among more candidates than are returned is not supported: null, or equal to n."),
    ] = None
    suffix: Annotated[
        Any, refused([None, ""], 'Filling in the middle is not supported: leave suffix out or send "".')
    ] = None

    def prompts(self) -> list[tuple[str, str | list[int]]]:
        """The prompts one by one, each with the name that errors give it.

        Choice ``p * n + s`` of the answer is sample ``s`` of prompt ``p``.
        """
        return one_by_one(self.prompt, "prompt")

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``: only what was given, and ``max_tokens`` always (default 16)."""
        params = self.common_sampling()
        params["max_tokens"] = self.max_tokens or max(DEFAULT_MAX_TOKENS, self.min_tokens or 0)
        if self.logprobs is not None:
            params["logprobs"] = self.logprobs
            if self.echo:
                params["prompt_logprobs"] = self.logprobs
        return params
