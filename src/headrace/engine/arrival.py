"""From a request to the sequences that answer it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np

from headrace.engine.constraint import TokenConstraint
from headrace.engine.messages import Generate
from headrace.engine.outcome import seed_of, slot_sampling
from headrace.engine.sequence import Sequence
from headrace.memory.prefix_tree import PrefixKey
from headrace.runtime.batch import IntArray


def prefix_key(message: Generate) -> PrefixKey:
    """Where the prefix tree keeps what a request shares. A replica has one model and one way to compute it."""
    return PrefixKey(message.salt)


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
    limit = len(prompt) + (room if params.max_tokens is None else min(params.max_tokens, room))
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
                sampling=slot_sampling(params, seed, index, stop_ids),
                stop_ids=stop_ids,
                limit=limit,
                root=prefix_key(message),
                tenant=message.tenant,
                priority=message.priority,
                deadline=math.inf if message.deadline is None else message.deadline,
                tokens=tokens,
                known=len(prompt),
                prompt_length=len(prompt),
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
