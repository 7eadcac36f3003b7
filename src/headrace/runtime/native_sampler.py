"""``NativeSampler``: ``sampler.py`` in native code, many rows in one call. The same tokens, bit for bit."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.pool import ThreadPool
from headrace.errors import InvalidInput
from headrace.runtime.batch import NO_MASKS, FloatArray, IntArray, Mask, SlotSampling, TokenLogprobs, check_mask
from headrace.runtime.native_program import aligned
from headrace.runtime.sampler import ONE, NotFinite, TokenCounts
from headrace.runtime.slots import Slot, SlotTable

FOLDER = Path(__file__).with_name("sampling")
MOST_TOKENS = 1 << 22  # of a vocabulary: the sum of so many weights fits 63 bits

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_WHOLE = (
    *("position", "prompt_length", "min_tokens", "top_k"),
    *("bias_count", "bias_tokens", "bias_values", "suppress_count", "suppress"),
    *("output", "seen", "mask", "report", "token"),
)
# As in sampler.c.
ROW = np.dtype(
    [(name, np.float64) for name in _NUMBERS]
    + [(name, np.uint64) for name in ("seed", "sample_index")]
    + [(name, np.int64) for name in _WHOLE]
)
RESULT = np.dtype([(name, np.int64) for name in ("token", "rank", "total")] + [("peak", "f8"), ("value", "f8")])


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a call drew.

    Attributes:
        tokens: int32 [rows]; -1 where the logits allow none.
        logprobs: Per row, None where not asked for or not drawn.
    """

    tokens: IntArray
    logprobs: list[TokenLogprobs | None]


class _Buffers:
    """What native code reads and writes, kept from call to call.

    Args:
        rows: Rows at once.
        width: Likeliest tokens of each.
        scratch: Bytes of scratch memory.
    """

    def __init__(self, rows: int, width: int, scratch: int) -> None:
        self.settings, self.results = np.zeros(rows, ROW), np.zeros(rows, RESULT)
        self.tokens, self.values = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.float32)
        self.scratch = aligned(scratch)
        self.width = width
        arrays = (self.results, self.tokens, self.values, self.scratch)
        places = [0, self.settings.ctypes.data, 0, *(array.ctypes.data for array in arrays)]
        self.addresses = (ctypes.c_void_p * len(places))(*places)
        self.positions, self.masks, self.drawn = self.settings["position"], self.settings["mask"], self.results["token"]


def sampler_source(flags: tuple[str, ...] | None = None, *, sanitize: bool = False) -> Source:
    """The C code.

    Args:
        flags: Options for the compiler; by default those of this processor.
        sanitize: Build it for the sandbox.
    """
    headers = tuple((path.name, path.read_text()) for path in sorted(FOLDER.glob("*.h")))
    flags = ("-O3", *cpu_features().compile_flags()) if flags is None else flags
    return Source("sampler", (FOLDER / "sampler.c").read_text(), headers, flags, sanitize)


class NativeSampler:
    """Draws tokens and reports log probabilities; rows in parallel, the interpreter lock released.

    A row's result depends on its own logits, settings and position alone.

    Args:
        pool: Who computes.
        table: The slots; what they draw last and count stays there.
        slots: How many there are.
        vocab_size: Size of the vocabulary.
        library: What ``sampler_source`` compiles to; by default it is built.

    Raises:
        InvalidInput: The vocabulary is too large.
        ToolchainError: There is no C compiler, or it fails.
    """

    def __init__(
        self, pool: ThreadPool, table: SlotTable, slots: int, vocab_size: int, library: ctypes.CDLL | None = None
    ) -> None:
        if not 0 < vocab_size <= MOST_TOKENS:
            raise InvalidInput(f"must be from 1 to {MOST_TOKENS}, got {vocab_size}", field="vocab_size")
        self._library = library or _library()
        self._pool, self._table, self._vocab = pool, table, vocab_size
        # A single row is one thread's work: to share it, another is woken up or waited for, which takes longer.
        self._alone = ThreadPool(1)
        self._settings = np.zeros(slots, ROW)
        self._known: list[Slot | None] = [None] * slots
        self._kept: list[tuple[Any, ...]] = [()] * slots  # arrays whose addresses native code has
        self._scratch = scratch_bytes(self._library, vocab_size) * pool.threads
        self._sample = self._library.hr_sample
        self._sample.restype, self._sample.argtypes = None, [ctypes.c_void_p] * 3
        self._sizes = (ctypes.c_int64 * 3)(0, vocab_size, 0)
        self._logits: tuple[FloatArray | None, int] = None, 0  # those used last, and their address
        # What the buffers' settings are of: how many slots had been opened, and which of them are drawn from.
        self._drawing: tuple[int, list[int]] | None = None
        self._counted: list[tuple[int, TokenCounts]] = []
        self._reported: list[tuple[int, int]] = []
        self._masked: list[int] = []  # rows whose settings have the address of a mask
        self._buffers = _Buffers(slots, 0, self._scratch)

    def draw(
        self,
        slots: list[int],
        logits: FloatArray,
        positions: npt.NDArray[np.integer],
        masks: Mapping[int, Mask] = NO_MASKS,
    ) -> Drawn:
        """Draw the next token of each of these slots, and remember it there.

        Args:
            slots: [rows], no two the same.
            logits: float32 [rows, vocab].
            positions: int [rows], index of the drawn token in its sequence.
            masks: Tokens that may be drawn from a row; all, where it has no mask.

        Raises:
            InvalidInput: A slot's settings or a mask cannot be used; no token is drawn.
        """
        drawing = self._table.opened, slots
        if drawing != self._drawing:
            self._gather(slots)
            self._drawing = drawing
        if masks or self._masked:
            self._place(masks)
        buffers, rows, last_tokens = self._buffers, len(slots), self._table.last_tokens
        buffers.positions[:rows] = positions
        self._call(rows, logits)
        tokens = buffers.drawn[:rows].tolist()
        for slot, token in zip(slots, tokens, strict=True):
            if token >= 0:
                last_tokens[slot] = token
        for i, counts in self._counted:
            if tokens[i] >= 0:
                counts.add(tokens[i])
        logprobs: list[TokenLogprobs | None] = [None] * rows
        for i, top in self._reported:
            logprobs[i] = self._entry(i, top)
        return Drawn(np.array(tokens, np.int32), logprobs)

    def report(self, logits: FloatArray, tokens: IntArray, top: int) -> list[TokenLogprobs]:
        """``token_logprobs`` of each row.

        Args:
            logits: float32 [rows, vocab].
            tokens: int32 [rows].
            top: How many of the likeliest to report beside each.

        Raises:
            NotFinite: A row's logits are no distribution.
            InvalidInput: There is no such token.
        """
        check_tokens("tokens", tokens, self._vocab)
        self._drawing = None
        rows = self._room(len(tokens), top).settings[: len(tokens)]
        rows[:] = np.zeros((), ROW)
        rows["token"], rows["report"] = tokens, min(top, self._vocab)
        self._call(len(tokens), logits)
        found = [entry for entry in (self._entry(i, top) for i in range(len(tokens))) if entry is not None]
        if len(found) < len(tokens):
            raise NotFinite
        return found

    def _gather(self, slots: list[int]) -> None:
        """Put the settings of these slots into the buffers; they serve until others are drawn from."""
        states = [self._table[slot] for slot in slots]
        for slot, state in zip(slots, states, strict=True):
            if self._known[slot] is not state:
                self._learn(slot, state)
        self._counted = [(i, x.counts) for i, x in enumerate(states) if x.counts is not None]
        self._reported = [(i, x.sampling.logprobs) for i, x in enumerate(states) if x.sampling.logprobs is not None]
        buffers = self._room(len(slots), max((top for _, top in self._reported), default=0))
        # Any other mode copies twice.
        np.take(self._settings, slots, out=buffers.settings[: len(slots)], mode="clip")

    def _place(self, masks: Mapping[int, Mask]) -> None:
        """Put the addresses of these masks, and no others, into the settings."""
        for mask in masks.values():
            check_mask(mask, self._vocab)
        self._buffers.masks[self._masked] = 0
        for i, mask in masks.items():
            self._buffers.masks[i] = mask.ctypes.data
        self._masked = list(masks)

    def _learn(self, slot: int, state: Slot) -> None:
        row, kept = settings_row(state, self._vocab)
        self._settings[slot], self._kept[slot], self._known[slot] = row, kept, state

    def _room(self, rows: int, width: int) -> _Buffers:
        """Buffers for so many rows with so many likeliest tokens."""
        have = self._buffers
        if rows > len(have.settings) or width > have.width:
            self._buffers = _Buffers(max(rows, len(have.settings)), max(width, have.width), self._scratch)
        return self._buffers

    def _call(self, rows: int, logits: FloatArray) -> None:
        """Do what ``settings`` of the buffers say."""
        if logits.shape != (rows, self._vocab):
            raise InvalidInput(f"must have the shape {(rows, self._vocab)}, not {logits.shape}", field="logits")
        last, address = self._logits
        if logits is not last:
            plain = np.ascontiguousarray(logits, np.float32)
            address = plain.ctypes.data
            # A copy is of what they are now.
            self._logits = (logits, address) if plain is logits else (None, 0)
        buffers, sizes = self._buffers, self._sizes
        buffers.addresses[2] = address
        sizes[0], sizes[2] = rows, buffers.width
        pool = self._alone if rows == 1 else self._pool
        self._sample(pool.handle, buffers.addresses, sizes)

    def _entry(self, i: int, top: int) -> TokenLogprobs | None:
        """Log probabilities of a row after a call; None if it failed."""
        buffers = self._buffers
        token, rank, total, peak, value = buffers.results[i].item()
        if token < 0:
            return None
        top = min(top, self._vocab)
        log_total = peak + math.log(total / ONE)
        logprobs = (buffers.values[i, :top].astype(np.float64) - log_total).astype(np.float32)
        return TokenLogprobs(token, value - log_total, rank, buffers.tokens[i, :top].copy(), logprobs)


def settings_row(state: Slot, vocab_size: int, base: int = 0) -> tuple[npt.NDArray[np.void], tuple[Any, ...]]:
    """A slot's settings as native code takes them.

    Args:
        state: The slot.
        vocab_size: Size of the vocabulary.
        base: The address that places are counted from.

    Returns:
        ROW [], and the arrays whose addresses are in it.

    Raises:
        InvalidInput: A number is not finite, or a token is outside the vocabulary.
    """
    sampling = state.sampling
    check_settings(sampling, vocab_size)
    bias_tokens, suppress = (np.ascontiguousarray(x, np.int32) for x in (sampling.bias_tokens, sampling.suppress))
    bias_values = np.ascontiguousarray(sampling.bias_values, np.float32)
    row = np.zeros((), ROW)
    for name in (*_NUMBERS, "min_tokens", "top_k", "sample_index"):
        row[name] = getattr(sampling, name)
    row["seed"] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
    row["prompt_length"] = state.prompt_length
    row["bias_count"], row["suppress_count"] = len(bias_tokens), len(suppress)
    row["report"] = -1 if sampling.logprobs is None else min(sampling.logprobs, vocab_size)
    row["token"] = -1
    places: dict[str, npt.NDArray[Any]] = {"bias_tokens": bias_tokens, "bias_values": bias_values, "suppress": suppress}
    if state.counts is not None:
        places |= {"output": state.counts.output, "seen": state.counts.seen}
    for name, array in places.items():
        row[name] = array.ctypes.data - base
    return row, tuple(places.values())


def check_settings(sampling: SlotSampling, vocab_size: int) -> None:
    """Raise ``InvalidInput`` where native code could not compute, or would read beyond the logits."""
    for name in _NUMBERS:
        if not math.isfinite(getattr(sampling, name)):
            raise InvalidInput(f"must be a finite number, got {getattr(sampling, name)!r}", field=name)
    if not 0 <= sampling.min_p <= 1:
        raise InvalidInput(f"must be from 0 to 1, got {sampling.min_p}", field="min_p")
    if len(sampling.bias_tokens) != len(sampling.bias_values):
        raise InvalidInput("must have a value for each token", field="bias_values")
    check_tokens("bias_tokens", sampling.bias_tokens, vocab_size)
    check_tokens("suppress", sampling.suppress, vocab_size)


def check_tokens(field: str, tokens: IntArray, vocab_size: int) -> None:
    """Raise ``InvalidInput`` where a token is outside the vocabulary."""
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise InvalidInput(f"must be tokens from 0 to {vocab_size - 1}", field=field)


def scratch_bytes(library: ctypes.CDLL, vocab_size: int) -> int:
    """Bytes of scratch memory that a thread needs, a multiple of 64."""
    function = library.hr_sample_scratch
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64]
    return int(function(vocab_size))


@functools.cache
def _library() -> ctypes.CDLL:
    return Builder().load(sampler_source())
