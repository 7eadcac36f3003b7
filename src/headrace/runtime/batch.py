"""The records between scheduler and executor: a ``Batch`` goes in, a ``StepOutput`` comes out.

A running sequence owns a *slot* of the executor. The slot keeps what lasts from step to step: last token, page
row, sampling settings, penalty counts. A batch carries only what changes, as parallel arrays, ragged::

    row                 0             1   2       one row a sequence, prefill chunks and decode mixed
    slots             [ 5,            2,  7 ]
    starts            [ 0,          130, 18 ]     position of the row's first token in its sequence
    offsets           [ 0,            4,  5, 6 ]
    tokens            [ 9 31 4 11,   -1, -1 ]     -1 (FROM_SLOT): the token that the slot sampled last

In it every token sees the tokens of its own sequence at its own position and before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.memory.commands import PageCommand, PlaceWrite
from headrace.memory.page_form import PageForm

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
# Which tokens may be drawn: uint32 [mask_words(vocab)], little-endian; token t is bit t % 32 of word t // 32.
Mask = npt.NDArray[np.uint32]

# How hidden vectors become one: that of the last token, or the mean of all.
Pooling = Literal["mean", "last"]

FROM_SLOT = -1
NO_MASKS: Mapping[int, Mask] = MappingProxyType({})


def mask_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // 32)


def check_mask(mask: Mask, vocab_size: int) -> None:
    """Raise ``InvalidInput`` where native code would read beyond a mask, or misread it."""
    if mask.dtype != np.uint32 or mask.shape != (mask_words(vocab_size),) or not mask.flags.c_contiguous:
        raise InvalidInput(f"must be {mask_words(vocab_size)} uint32, side by side", field="mask")


def _no_tokens() -> IntArray:
    return np.empty(0, np.int32)


def _no_values() -> FloatArray:
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SlotSampling:
    """How a slot's tokens are drawn; the executor's part of ``SamplingParams``, seeds resolved.

    Attributes:
        seed: With ``sample_index`` and the position, the whole state of the random numbers.
        sample_index: Which of the request's n samples this is.
        bias_tokens: int32 [k], tokens whose logits get something added.
        bias_values: float32 [k], what they get.
        suppress: int32 [k], tokens that may not be drawn while the output is shorter than ``min_tokens``.
        logprobs: Alternatives to report per drawn token; None reports nothing.
        prompt_logprobs: The same for prompt tokens.
        pooling: No token is drawn; where the prompt ends, this is made of its hidden vectors. None: a token is drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_tokens: IntArray = field(default_factory=_no_tokens)
    bias_values: FloatArray = field(default_factory=_no_values)
    seed: int = 0
    sample_index: int = 0
    min_tokens: int = 0
    suppress: IntArray = field(default_factory=_no_tokens)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class SlotOpen:
    """A sequence takes a slot, new or resumed.

    Attributes:
        slot: The slot, free until now.
        tokens: int32 [prompt + output so far]. Penalties count them.
        prompt_length: How many of them are prompt.
        sampling: How its tokens are drawn.
    """

    slot: int
    tokens: IntArray
    prompt_length: int
    sampling: SlotSampling


@dataclass(frozen=True, slots=True)
class PageWrite:
    """Entries of a slot's page row: new pages at its end, or pages exchanged for equal ones of the prefix tree.

    Attributes:
        slot: The slot.
        start: Index of the first entry in the row.
        handles: int32 [pages], virtual handles of a pool.
        group: Number of the state group.
    """

    slot: int
    start: int
    handles: IntArray
    group: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work. See the module's picture; arrays are int32 unless said.

    Attributes:
        step: Number of the step, counted from 1.
        commands: What becomes of pages, before anything else.
        opens: Slots taken. A slot is free again when another sequence opens it.
        pages: Page rows written, after ``opens``.
        slots: [rows].
        starts: [rows].
        offsets: [rows + 1] into ``tokens``.
        tokens: [total].
        sample: bool [rows]: the row ends at the end of its sequence, so a token is drawn from it, or an embedding made.
        decode: Every row is the one token that its slot drew last, and all draw; see ``decode_batch``.
    """

    step: int
    opens: tuple[SlotOpen, ...]
    pages: tuple[PageWrite, ...]
    slots: IntArray
    starts: IntArray
    offsets: IntArray
    tokens: IntArray
    sample: npt.NDArray[np.bool_]
    commands: tuple[PageCommand, ...] = ()
    decode: bool = False

    @property
    def rows(self) -> int:
        """Number of sequences in the step."""
        return len(self.slots)


def decode_batch(
    step: int,
    commands: tuple[PageCommand, ...],
    pages: tuple[PageWrite, ...],
    slots: list[int],
    starts: list[int],
) -> Batch:
    """A batch in which each slot computes the token that it drew last, and draws the next: most batches are.

    Args:
        step: Number of the step.
        commands: What becomes of pages.
        pages: Page rows written.
        slots: [rows].
        starts: [rows].
    """
    offsets, tokens, sample = _decode_shape(len(slots))
    return Batch(
        step,
        (),
        pages,
        np.array(slots, np.int32),
        np.array(starts, np.int32),
        offsets,
        tokens,
        sample,
        commands,
        decode=True,
    )


@functools.cache
def _decode_shape(rows: int) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """Offsets, tokens and sample of a batch that decodes so many rows; shared, so not to be written."""
    shape = np.arange(rows + 1, dtype=np.int32), np.full(rows, FROM_SLOT, np.int32), np.ones(rows, np.bool_)
    for array in shape:
        array.flags.writeable = False
    return shape


def bare_batch(step: int, commands: tuple[PageCommand, ...], pages: tuple[PageWrite, ...] = ()) -> Batch:
    """A batch without rows, for commands that must not wait for rows to compute."""
    return dataclasses.replace(decode_batch(step, commands, pages, [], []), decode=False)


def empty_output(step: int) -> StepOutput:
    """What a batch without rows produces."""
    return StepOutput(step, np.empty(0, np.int32), np.empty(0, np.int32), (), ())


def whole_prompt(tokens: IntArray, page_tokens: int, form: PageForm) -> Batch:
    """A batch that computes one sequence from its start, in slot 0 and the first pages; nothing is drawn.

    Args:
        tokens: int32 [n].
        page_tokens: Tokens of a page.
        form: How pages lie in the arena.
    """
    pages = np.arange(-(-len(tokens) // page_tokens), dtype=np.int32)
    offsets = pages // form.slab_pages * form.slab_bytes + pages % form.slab_pages * form.page_bytes
    zero = np.zeros(1, np.int32)
    return Batch(
        step=0,
        commands=(PlaceWrite(0, pages, offsets.astype(np.int64)),),
        opens=(SlotOpen(0, tokens, len(tokens), SlotSampling()),),
        pages=(PageWrite(0, 0, pages),),
        slots=zero,
        starts=zero,
        offsets=np.array([0, len(tokens)], np.int32),
        tokens=tokens,
        sample=np.zeros(1, np.bool_),
    )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log probabilities of one position.

    Attributes:
        token: The token that was drawn (or stood in the prompt).
        logprob: Its log probability.
        rank: How many tokens are at least as likely as it (1 is the likeliest).
        top_tokens: int32 [k], likeliest first.
        top_logprobs: float32 [k].
    """

    token: int
    logprob: float
    rank: int
    top_tokens: IntArray
    top_logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step produced, in the order of its rows.

    Attributes:
        step: The batch's number.
        tokens: int32 [rows]; the drawn token, or -1 where nothing was drawn.
        accepted: int32 [rows]; tokens added to the sequence (0 or 1 without speculation).
        logprobs: Per row, None where not asked for.
        prompt_logprobs: Per row, one entry a prompt position whose successor is known.
        errors: Row to message, for rows that failed; the others are unharmed.
        seconds: Time in the executor.
        embeddings: Row to float32 [hidden], where one was asked for and the prompt ends.
    """

    step: int
    tokens: IntArray
    accepted: IntArray
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...]
    errors: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    embeddings: Mapping[int, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted batch, to be collected in the order of submission."""

    step: int


class BatchQueue:
    """Batches that were submitted and are to be collected, in order."""

    def __init__(self) -> None:
        self._pending: deque[Batch] = deque()

    def put(self, batch: Batch) -> Ticket:
        """Take a batch."""
        self._pending.append(batch)
        return Ticket(batch.step)

    def take(self, ticket: Ticket) -> Batch:
        """The oldest batch.

        Raises:
            RuntimeError: The ticket is not the oldest batch's.
        """
        if not self._pending or self._pending[0].step != ticket.step:
            oldest = f"batch {self._pending[0].step} comes first" if self._pending else "there is none"
            raise RuntimeError(f"batch {ticket.step} cannot be collected: {oldest}")
        return self._pending.popleft()

    @property
    def oldest(self) -> Batch | None:
        """The batch that is to be collected next."""
        return self._pending[0] if self._pending else None

    def clear(self) -> None:
        """Forget all."""
        self._pending.clear()


class Executor(Protocol):
    """Runs batches in the order of submission; each finds the pages and slots as those before it have left them.

    A batch may be submitted before the one that it follows is collected: its tokens are taken from the slots. If one
    fails, those that were submitted after it are dropped, and what is in pages and slots is not defined.

    Attributes:
        ahead: Batches that it wants beyond the one that is collected: 1 if it computes while others plan, else 0.
    """

    ahead: int

    def submit(self, batch: Batch) -> Ticket:
        """Take a batch; returns at once where the device allows."""
        ...

    def collect(self, ticket: Ticket, masks: Mapping[int, Mask] = NO_MASKS) -> StepOutput:
        """Wait for the oldest batch, draw its tokens, and return what it produced.

        Args:
            ticket: The batch's.
            masks: Tokens that may be drawn from a row; all, where it has no mask. They come this late because they
                depend on the tokens of the batch before: only drawing waits for them, not the forward pass.
        """
        ...
