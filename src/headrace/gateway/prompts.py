"""From the prompts of a request's body to tokens."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.gateway.services import Services
from headrace.text.prompt import Prompt, text_prompt, token_prompt


def prompts_of(services: Services, given: Sequence[tuple[str, str | list[int]]]) -> list[Prompt]:
    """Prompts from texts and token ids, each with the name that errors give it.

    Raises:
        InvalidInput: One cannot be used.
    """
    tokenizer, info = services.tokenizer, services.replica.info
    vocab_size = None if info is None else info.vocab_size
    return [
        text_prompt(tokenizer, prompt, field=field)
        if isinstance(prompt, str)
        else token_prompt(tokenizer, prompt, field=field, vocab_size=vocab_size)
        for field, prompt in given
    ]
