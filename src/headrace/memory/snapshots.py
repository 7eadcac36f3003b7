"""How often along a prompt a recurrent state is kept, as a pure function."""

from __future__ import annotations

import math


def snapshot_spacing(
    *,
    page_tokens: int,
    state_bytes: int,
    token_bytes: float,
    step_seconds: float,
    token_seconds: float,
    branch_tokens: float,
) -> int:
    """Tokens between the states that are kept of a prompt, beside those at its end and where prompts part ways.

    It is the balance of checkpoints (Young, 1974; Daly, 2006) with tokens for time. What comes later goes on from the
    last state before the place where it leaves a prompt: with a state every ``s`` tokens it computes ``s / 2`` again,
    on average, once in ``branch_tokens``. A state costs as much as computing ``d`` tokens:

    - a prompt's chunk must end there, so it takes a step more: ``step_seconds / token_seconds`` tokens;
    - its bytes cannot hold ``state_bytes / token_bytes`` tokens of other prefixes, which are as likely to be used and
      would have to be computed again. Without pages by token they cannot hold the state at the end of another prompt,
      of ``branch_tokens``.

    A token then costs ``d / s + s / (2 branch_tokens)`` beyond itself, least at ``s = sqrt(2 d branch_tokens)``. The
    minimum is flat: a factor of 1.4 costs 6 % more. So the result is a page times a power of two; then a spacing that
    changes keeps every other place.

    Args:
        page_tokens: Tokens of a page; states are found at its multiples.
        state_bytes: Of a sequence's states.
        token_bytes: Of a token's share of pages by token; 0: there are none.
        step_seconds: Of a step beside its tokens.
        token_seconds: To compute a token; 0: not known.
        branch_tokens: Tokens of prompts to each place where one leaves what is cached at a place without a state.

    Returns:
        A page at least.
    """
    cost = state_bytes / token_bytes if token_bytes else branch_tokens
    if token_seconds:
        cost += step_seconds / token_seconds
    best = math.sqrt(2 * cost * branch_tokens)
    return page_tokens << max(0, round(math.log2(max(best, 1.0) / page_tokens)))
