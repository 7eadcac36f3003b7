"""What a request must satisfy before the engine sees it."""

from __future__ import annotations

from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput
from headrace.runtime.batch import IntArray


def check_request(
    prompt: IntArray,
    params: SamplingParams,
    *,
    vocab_size: int,
    context_length: int,
    field: str = "prompt",
    answered: bool = True,
) -> None:
    """Refuse what the engine could not run.

    Args:
        prompt: int32 [n] token ids.
        params: Valid in themselves; checked here against the model.
        vocab_size: Token ids are below it.
        context_length: Most tokens of a sequence.
        field: What the caller calls the prompt.
        answered: Whether room for at least one token more must be left; not if the prompt is only embedded.

    Raises:
        InvalidInput: With the field, and code ``context_length_exceeded`` where it is about length.
    """
    if not len(prompt):
        raise InvalidInput("the prompt is empty: it needs at least one token", field=field)
    if len(prompt) + answered > context_length:
        why = ", of which the answer needs at least one" if answered else ""
        raise InvalidInput(
            f"the prompt has {len(prompt)} tokens; this model's context is {context_length} tokens{why}",
            field=field,
            code="context_length_exceeded",
        )
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        wrong = int(prompt[(prompt < 0) | (prompt >= vocab_size)][0])
        raise InvalidInput(f"token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})", field=field)
    params.check_vocabulary(vocab_size)


def check_room(prompt_length: int, max_tokens: int, *, context_length: int, field: str = "max_tokens") -> None:
    """Refuse an explicit ``max_tokens`` (or ``min_tokens``) that the context cannot hold beside the prompt."""
    room = context_length - prompt_length
    if max_tokens > room:
        raise InvalidInput(
            f"{max_tokens} tokens do not fit: the prompt has {prompt_length}, the context {context_length}, "
            f"so at most {room} can follow",
            field=field,
            code="context_length_exceeded",
        )
