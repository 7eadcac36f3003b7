"""From a request to the sequences that answer it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np

from headrace.engine.constraint import ConstraintFactory, TokenConstraint
from headrace.engine.messages import Generate
from headrace.engine.outcome import seed_of, slot_sampling
from headrace.engine.sequence import Sequence
from headrace.engine.validation import check_request
from headrace.errors import InvalidInput
from headrace.memory.prefix_tree import PrefixKey
from headrace.runtime.batch import IntArray


def prefix_key(message: Generate) -> PrefixKey:
    """Where the prefix tree keeps what a request shares. A replica has one model and one way to compute it."""
    return PrefixKey(message.salt)


def check_message(message: Generate, prompt: IntArray, *, vocab_size: int, context_length: int) -> None:
    """Refuse a request that cannot be run; see ``check_request``."""
    answered = message.pooling is None
    check_request(prompt, message.params, vocab_size=vocab_size, context_length=context_length, answered=answered)
    if not answered and message.params.n != 1:
        raise InvalidInput("a prompt has one embedding", field="n")


def constraints_of(message: Generate, constraint_for: ConstraintFactory) -> list[TokenConstraint | None]:
    """What each sample of a request is bound by; an embedding is bound by nothing."""
    if message.pooling is not None:
        return [None]
    return [constraint_for(message.params) for _ in range(message.params.n)]


def sequences_of(
    message: Generate,
    prompt: IntArray,
    constraints: Iterable[TokenConstraint | None],
    *,
    eos: Iterable[int],
    room: int,
    arrivals: int,
) -> list[Sequence]:
    """The sequences of a request, one a sample.

    Args:
        message: The request.
        prompt: int32, its tokens.
        constraints: What each sample is bound by.
        eos: Ids of the model's end-of-sequence tokens.
        room: Tokens that may follow the prompt in the model's context.
        arrivals: Sequences that arrived before.
    """
    params = message.params
    stop_ids = frozenset(() if params.ignore_eos else eos) | frozenset(params.stop_token_ids)
    seed = seed_of(params)
    most = room if params.max_tokens is None else min(params.max_tokens, room)
    limit = len(prompt) + (1 if message.pooling else most)
    sequences: list[Sequence] = []
    for index, constraint in enumerate(constraints):
        tokens = np.empty(limit, np.int32)
        tokens[: len(prompt)] = prompt
        sequences.append(
            Sequence(
                request=message.request,
                index=index,
                arrival=arrivals + 1 + index,
                params=params,
                sampling=slot_sampling(params, seed, index, stop_ids, message.pooling),
                stop_ids=stop_ids,
                limit=limit,
                root=prefix_key(message),
                tenant=message.tenant,
                priority=message.priority,
                deadline=math.inf if message.deadline is None else message.deadline,
                tokens=tokens,
                known=len(prompt),
                prompt_length=len(prompt),
                can_share_prompt=index > 0 or message.can_share_prompt,  # only the first answers for its tokens
                constraint=constraint,
                preparing=constraint is not None,
                leader=sequences[0] if sequences else None,
                queued=time.monotonic(),
                received=message.received,
                tokenized=message.tokenized,
                routed=message.routed,
            )
        )
    return sequences
