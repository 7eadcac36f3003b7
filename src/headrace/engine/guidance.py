"""Constraints at work: which tokens may be drawn, which need not be, and how they end a sample."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from headrace.engine.constraint import TokenConstraint
from headrace.engine.messages import Finish
from headrace.engine.outcome import failure, finish_of, timeline_of
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


class Guide:
    """Asks constraints.

    Args:
        vocab_size: Size of the vocabulary.
        jump_forward: Whether tokens that are the only ones allowed are taken without drawing them.

    Attributes:
        preparing: Sequences whose constraints were not ready when they were asked last.
    """

    def __init__(self, vocab_size: int, *, jump_forward: bool) -> None:
        self._vocab, self._jump_forward = vocab_size, jump_forward
        self.preparing: list[Sequence] = []

    def ready(self) -> list[tuple[Sequence, Finish | None]]:
        """Those who wait for their constraints no longer; with each how it ends, if its constraint has failed."""
        asked, self.preparing, found = self.preparing, [], []
        for sequence in asked:
            constraint, failed = sequence.constraint, None
            if sequence.finished or constraint is None:
                continue
            try:
                sequence.preparing = not constraint.ready
            except HeadraceError as error:
                sequence.preparing, failed = False, failure(error)
            if sequence.preparing:
                self.preparing.append(sequence)
            else:
                found.append((sequence, failed))
        return found

    def begin(self, sequence: Sequence) -> Finish | None:
        """Have a constraint say what may come first; how the sample ends if nothing may."""
        constraint = sequence.constraint
        if constraint is None:
            return None
        try:
            if constraint.complete:
                return Finish("stop", timeline=timeline_of(sequence))
            self._look(sequence, constraint)
        except HeadraceError as error:
            return failure(error)
        return None

    def sets_aside(self, sequence: Sequence, constraint: TokenConstraint, token: int) -> bool:
        """Have a slow constraint follow a token aside; whether it does, so that the sequence waits for it.

        It cannot where a batch on its way needs to know what comes behind the token, and need not where nothing does.
        """
        if sequence.drawing or finish_of(sequence, token) is not None or not constraint.slow:
            return False
        constraint.prepare(token)
        sequence.preparing = True
        self.preparing.append(sequence)
        return True

    def guidance(self, planned: Planned) -> Guidance:
        """What constraints say of a batch once the tokens of all batches before it are known.

        Rows of stays that are over may get masks too: what they draw is void.
        """
        masks: dict[int, Mask] = {}
        foretold = []
        positions = planned.positions()
        for row, (sequence, _) in enumerate(planned.rows):
            position = positions[row]
            if sequence.constraint is None or position < 0:
                continue
            if position < sequence.known:
                masks[row] = mask_of(int(sequence.tokens[position]), self._vocab)
                foretold.append(row)
            elif sequence.mask is not None:
                masks[row] = sequence.mask
        return Guidance(masks, foretold)

    def follow(self, sequence: Sequence, constraint: TokenConstraint, tokens: list[int]) -> Finish | None:
        """Have a constraint follow a token that was drawn.

        Args:
            sequence: Has taken the token.
            constraint: Its constraint.
            tokens: The token. To it are added those that are the only ones allowed behind it; the sequence takes them,
                unless log probabilities are asked, which drawing gives, or the constraint is slow.

        Returns:
            How the sample ends with the last of the tokens; None: it goes on.
        """
        jump = self._jump_forward and sequence.sampling.logprobs is None and not constraint.slow
        try:
            while (finish := _finish(sequence, constraint, tokens[-1])) is None:
                only = self._look(sequence, constraint)
                if only is None or not jump:
                    return None
                sequence.force(only)
                tokens.append(only)
        except HeadraceError as error:
            return failure(error)
        return finish

    def _look(self, sequence: Sequence, constraint: TokenConstraint) -> int | None:
        """Note what may be drawn next; if that is one token, it is returned.

        Raises:
            HeadraceError: The constraint has failed.
        """
        mask = constraint.allowed()
        only = None if mask is None else only_token(mask, self._vocab)
        sequence.mask = mask  # a sound one: rows that are void get it too
        return only

    def check(self, everyone: Iterable[Sequence]) -> None:
        """Assert that all who wait for a constraint are known here."""
        preparing = [s for s in self.preparing if not s.finished]
        assert {id(s) for s in preparing} == {id(s) for s in everyone if s.preparing}, "nobody asks a constraint"


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
