"""Prompts as OpenAI's text routes take them: a string, a list of strings, of token ids, or of lists of token ids."""

from __future__ import annotations

from typing import Any, cast

from headrace.api.errors import bad_request
from headrace.api.fields import INT32_MAX, TokenId

MAX_PROMPTS = 2048

Prompts = str | list[str | TokenId | list[TokenId]]

_TOKENS: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
}
# A union may hold one kind of array for the decoder, and four for the reader: the check tells them apart.
PROMPTS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string", "minLength": 1}},
        _TOKENS,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TOKENS},
    ]
}


def one_by_one(prompts: Prompts, field: str) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its name, such as ``prompt[2]``: a string or token ids."""
    if isinstance(prompts, str):
        return [(field, prompts)]
    if isinstance(prompts[0], int):
        return [(field, cast("list[int]", prompts))]
    return [(f"{field}[{i}]", cast("str | list[int]", prompt)) for i, prompt in enumerate(prompts)]


def check_prompts(prompts: Prompts, field: str) -> None:
    """Refuse what is empty, mixed or too many; raises ``ApiError`` (400)."""
    if len(prompts) == 0:
        raise bad_request(f"The {field} is empty.", param=field)
    if isinstance(prompts, str):
        return
    kind = type(prompts[0])
    for i, item in enumerate(prompts):
        if type(item) is not kind:
            raise bad_request(
                f"'{field}' holds strings, or token ids, or lists of token ids, and one kind only.",
                param=f"{field}[{i}]",
            )
        if not isinstance(item, int) and len(item) == 0:
            raise bad_request(f"The {field} is empty.", param=f"{field}[{i}]")
    if kind is not int and len(prompts) > MAX_PROMPTS:
        raise bad_request(f"At most {MAX_PROMPTS} prompts in one request, got {len(prompts)}.", param=field)
