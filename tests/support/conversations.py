"""Conversations of all the shapes that a chat template may meet."""

from __future__ import annotations

import random
import string
from typing import Any

from format_messages import arguments, prose

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & then, 'né', \"quoted\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where, e.g. 北京."},
                    "n": {"type": "integer", "description": "Days.", "default": 3},
                    "path": {"type": "array", "items": {"type": "string"}, "description": "A list."},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]
TEXTS = (
    "",
    " ",
    "Hi <b> & 'there' \n",
    "  two\n\nlines ",
    '{"a": [1, "x"]}',
    "北京 👩‍👩‍👧 naïve",
    "<think>\nhm\n</think>\n\nHi!",
)


def text(rng: random.Random) -> str:
    return rng.choice(TEXTS) if rng.random() < 0.3 else prose(rng)


def identifier(rng: random.Random) -> str:
    """What all templates take: nine letters and digits."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=9))


def call(rng: random.Random) -> dict[str, Any]:
    name = rng.choice(["get_weather", "get_weather", "now"])
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments(rng)}}
    return {"id": identifier(rng), **made} if rng.random() < 0.9 else made


def answer(rng: random.Random, *, calls: int = 0) -> dict[str, Any]:
    """A message of the assistant."""
    made: dict[str, Any] = {"role": "assistant", "content": rng.choice([text(rng), text(rng), "", None])}
    if rng.random() < 0.4:
        made[rng.choice(["reasoning_content", "reasoning"])] = text(rng)
    if calls:
        made["tool_calls"] = [call(rng) for _ in range(calls)]
    return made


def conversation(rng: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages, and options of the rendering."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "system", "system", "developer"]), "content": text(rng)})
    one_call = rng.random() < 0.4  # some templates refuse more
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": text(rng)})
        while rng.random() < 0.4:
            calls = answer(rng, calls=1 if one_call else rng.randint(1, 3))
            messages.append(calls)
            for made in calls["tool_calls"]:
                result = {"role": "tool", "content": text(rng), "name": made["function"]["name"]}
                messages.append(result | ({"tool_call_id": made["id"]} if "id" in made else {}))
        if rng.random() < 0.8:
            messages.append(answer(rng))
    if rng.random() < 0.5 and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": text(rng)})
    options: dict[str, Any] = {"add_generation_prompt": rng.random() < 0.7}
    if rng.random() < 0.6:
        options["tools"] = TOOLS[: rng.randint(1, 2)]
    if rng.random() < 0.3:
        options["enable_thinking"] = rng.random() < 0.5
    return messages, options
