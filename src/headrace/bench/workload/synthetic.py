"""Workloads that are drawn: prompts that share nothing, sessions that share system prompts, chats."""

from __future__ import annotations

import math

import numpy as np

from headrace.bench.workload.lengths import LengthLaw
from headrace.bench.workload.records import Segment, Session, Turn, Workload
from headrace.bench.workload.seeds import generator
from headrace.errors import InvalidInput

MOST_REQUESTS = 1_000_000
MOST_THINK = 1e6  # seconds


def random_prompts(sessions: int, prompt: LengthLaw, output: LengthLaw, seed: int) -> Workload:
    """Single requests that share nothing.

    Args:
        sessions: Number of requests.
        prompt: Tokens of a prompt.
        output: Tokens to ask for.
        seed: Of the lengths.

    Raises:
        InvalidInput: There are no sessions, or more than a million requests, or the seed is negative.
    """
    _at_least_one(sessions, "sessions")
    _not_too_many(sessions)
    prompts = prompt.draw(generator(seed, "prompt"), sessions).tolist()
    outputs = output.draw(generator(seed, "output"), sessions).tolist()
    made = tuple(
        Session((Turn(segments=(Segment(f"user {i}", tokens),), output_tokens=answer),))
        for i, (tokens, answer) in enumerate(zip(prompts, outputs, strict=True))
    )
    return Workload("random", {"sessions": sessions, "prompt": str(prompt), "output": str(output), "seed": seed}, made)


def shared_prefix(
    system_prompts: int,
    sessions: int,
    turns: int,
    system: LengthLaw,
    user: LengthLaw,
    output: LengthLaw,
    think: float,
    seed: int,
) -> Workload:
    """Sessions of several turns, each behind one of a few system prompts.

    The system prompts are dealt out evenly, in an order drawn from the seed. The first turn's prompt is the system
    prompt and a message of the user; each later one continues it with the answer and another message.

    Args:
        system_prompts: How many there are; those beyond the number of sessions stay unused.
        sessions: Number of sessions.
        turns: Turns of each.
        system: Tokens of a system prompt, drawn once for each.
        user: Tokens of a message.
        output: Tokens to ask for.
        think: Seconds between an answer's end and the next message.
        seed: Of lengths and order.

    Raises:
        InvalidInput: A number out of range, or more than a million requests.
    """
    for value, field in (system_prompts, "system_prompts"), (sessions, "sessions"), (turns, "turns"):
        _at_least_one(value, field)
    _not_too_many(system_prompts)
    lengths = system.draw(generator(seed, "system"), system_prompts).tolist()
    prefixes = [(Segment(f"system {i}", tokens),) for i, tokens in enumerate(lengths)]
    dealt = generator(seed, "order").permutation(np.arange(_not_too_many(sessions)) % system_prompts)
    made = _conversations(np.full(sessions, turns), [prefixes[i] for i in dealt.tolist()], user, output, think, seed)
    return Workload(
        "shared-prefix",
        {
            "system_prompts": system_prompts,
            "sessions": sessions,
            "turns": turns,
            "system": str(system),
            "user": str(user),
            "output": str(output),
            "think": think,
            "seed": seed,
        },
        made,
    )


def chat(sessions: int, turns: LengthLaw, user: LengthLaw, output: LengthLaw, think: float, seed: int) -> Workload:
    """Conversations of several turns that share nothing with each other.

    Args:
        sessions: Number of conversations.
        turns: Turns of one, drawn for each.
        user: Tokens of a message, the first one like the others.
        output: Tokens to ask for.
        think: Seconds between an answer's end and the next message.
        seed: Of all that is drawn.

    Raises:
        InvalidInput: A number out of range, or more than a million requests.
    """
    _at_least_one(sessions, "sessions")
    drawn = turns.draw(generator(seed, "turns"), _not_too_many(sessions))
    made = _conversations(drawn, [()] * sessions, user, output, think, seed)
    return Workload(
        "chat",
        {
            "sessions": sessions,
            "turns": str(turns),
            "user": str(user),
            "output": str(output),
            "think": think,
            "seed": seed,
        },
        made,
    )


def _conversations(
    turns: np.ndarray[tuple[int], np.dtype[np.int64]],
    prefixes: list[tuple[Segment, ...]],
    user: LengthLaw,
    output: LengthLaw,
    think: float,
    seed: int,
) -> tuple[Session, ...]:
    if not (math.isfinite(think) and 0 <= think <= MOST_THINK):
        raise InvalidInput(f"{think!r} must be from 0 to {MOST_THINK:g} seconds", field="think")
    requests = _not_too_many(int(turns.sum()))
    messages = iter(user.draw(generator(seed, "user"), requests).tolist())
    outputs = iter(output.draw(generator(seed, "output"), requests).tolist())
    return tuple(
        Session(
            tuple(
                Turn(
                    segments=(*(prefix if turn == 0 else ()), Segment(f"user {i}.{turn}", next(messages))),
                    output_tokens=next(outputs),
                    continues=turn > 0,
                    think=think if turn > 0 else 0.0,
                )
                for turn in range(count)
            )
        )
        for i, (count, prefix) in enumerate(zip(turns.tolist(), prefixes, strict=True))
    )


def _at_least_one(value: int, field: str) -> None:
    if value < 1:
        raise InvalidInput(f"{value} must be at least 1", field=field)


def _not_too_many(requests: int) -> int:
    if requests > MOST_REQUESTS:
        raise InvalidInput(f"there would be {requests} requests; at most {MOST_REQUESTS} are made", field="sessions")
    return requests
