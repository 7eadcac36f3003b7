"""Constraints at work: which tokens may be drawn, which need not be, and how they end a sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from headrace.engine.constraint import TokenConstraint
from headrace.engine.messages import Finish
from headrace.engine.outcome import finish_of, timeline_of
from headrace.engine.plan import Planned
from headrace.engine.sequence import Sequence
from headrace.errors import ConstraintError, HeadraceError
from headrace.runtime.batch import NO_MASKS, Mask, check_mask, mask_words


class Guidance(NamedTuple):
    """What constraints say of a batch.

    Attributes:
        masks: Of its rows that may not draw just any token.
        foretold: Rows that draw a token which was taken already, because it was the only one allowed.
    """

    masks: Mapping[int, Mask]
    foretold: Collection[int]


FREE = Guidance(NO_MASKS, ())


def guidance_for(planned: Planned, vocab_size: int) -> Guidance:
    """What constraints say of a batch once the tokens of all batches before it are known."""
    masks: dict[int, Mask] = {}
    foretold = []
    for row, (sequence, stay) in enumerate(planned.rows):
        if sequence.constraint is None or sequence.stay != stay or not planned.batch.sample[row]:
            continue
        position = planned.position(row)
        if position < sequence.known:
            masks[row] = mask_of(int(sequence.tokens[position]), vocab_size)
            foretold.append(row)
        elif sequence.mask is not None:
            masks[row] = sequence.mask
    return Guidance(masks, foretold)


def begin(sequence: Sequence, constraint: TokenConstraint, vocab_size: int) -> Finish | None:
    """Have a constraint say what may come first, once it is ready.

    Returns:
        How the sample ends, if nothing may come or the constraint has failed.
    """
    try:
        if not constraint.ready:
            return None
        sequence.preparing = False
        if constraint.complete:
            return Finish("stop", timeline=timeline_of(sequence))
        look(sequence, constraint, vocab_size)
    except HeadraceError as error:
        return Finish("error", message=str(error))
    return None


def follow(
    sequence: Sequence, constraint: TokenConstraint, tokens: list[int], vocab_size: int, *, jump: bool
) -> Finish | None:
    """Have a constraint follow a token that was drawn.

    Args:
        sequence: Has taken the token.
        constraint: Its constraint.
        tokens: The token. To it are added those that are the only ones allowed behind it; the sequence takes them.
        vocab_size: Size of the vocabulary.
        jump: Whether to do that.

    Returns:
        How the sample ends with the last of the tokens; None: it goes on.
    """
    try:
        while (finish := _finish(sequence, constraint, tokens[-1])) is None:
            only = look(sequence, constraint, vocab_size)
            if only is None or not jump:
                return None
            sequence.force(only)
            tokens.append(only)
    except HeadraceError as error:
        return Finish("error", message=str(error))
    return finish


def look(sequence: Sequence, constraint: TokenConstraint, vocab_size: int) -> int | None:
    """Note what may be drawn next; if that is one token, it is returned.

    Raises:
        HeadraceError: The constraint has failed.
    """
    sequence.mask = constraint.allowed()
    return None if sequence.mask is None else only_token(sequence.mask, vocab_size)


def only_token(mask: Mask, vocab_size: int) -> int | None:
    """The token that a mask allows; None if it allows several.

    Raises:
        HeadraceError: It allows none, or is no mask for such a vocabulary.
    """
    check_mask(mask, vocab_size)
    words = np.count_nonzero(mask)
    if words > 1:
        return None
    at = int(mask.argmax())
    bits = int(mask[at])
    token = 32 * at + bits.bit_length() - 1
    if not bits or token >= vocab_size:
        raise ConstraintError("the constraint allows no token of the vocabulary, but is not complete")
    return token if bits == 1 << token % 32 else None


def mask_of(token: int, vocab_size: int) -> Mask:
    """The mask that allows one token."""
    mask = np.zeros(mask_words(vocab_size), np.uint32)
    mask[token // 32] = 1 << token % 32
    return mask


def _finish(sequence: Sequence, constraint: TokenConstraint, token: int) -> Finish | None:
    """How a sample ends with the token taken last, or None when it goes on."""
    if token not in sequence.stop_ids:
        matched = constraint.accept(token)
        if matched is not None or constraint.complete:
            return Finish("stop", stop=matched, timeline=timeline_of(sequence))
    return finish_of(sequence, token)
