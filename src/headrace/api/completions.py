"""``CompletionRequest``: the body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import Meta

from headrace.api.fields import MAX_LOGPROBS, SamplingFields, TokenId, refused

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048

# A union may hold one kind of array for the decoder, and four for the reader: the check tells them apart.
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
            "items": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
            },
        },
    ]
}


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``/v1/completions`` (OpenAI API reference, "Create completion", plus extensions)."""

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
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

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one; choice ``p * n + s`` of the answer is sample ``s`` of prompt ``p``."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [cast("list[int]", self.prompt)]
        return cast("list[str | list[int]]", self.prompt)

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``: only what was given, and ``max_tokens`` always (default 16)."""
        params = self.common_sampling()
        params["max_tokens"] = self.max_tokens or max(DEFAULT_MAX_TOKENS, self.min_tokens or 0)
        if self.logprobs is not None:
            params["logprobs"] = self.logprobs
            if self.echo:
                params["prompt_logprobs"] = self.logprobs
        return params
