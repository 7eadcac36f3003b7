"""What programs on trial read: weights in each layout that one wants, and pages of state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.codegen.layout import Layout
from headrace.compiler.ir import BITS, DType
from headrace.compiler.search.choices import merged
from headrace.memory.page_form import PageForm
from headrace.runtime.compile import PreparedModel
from headrace.runtime.native_program import SLACK, aligned
from headrace.runtime.packed_weights import stored_bits, weight_value, write

Load = Callable[[str], npt.NDArray[Any]]
KEEP_BYTES = 1 << 30  # of packed weights that nobody uses at present

_Key = tuple[tuple[str, ...], Layout, DType | None, tuple[str, ...]]


def _key(array: Array, repeats: tuple[str, ...]) -> _Key:
    """What tells regions of weights apart: weights of one record have one."""
    if not array.record:
        return (array.name,), merged(array.layout), array.dtype, repeats
    heads = Layout(array.layout.pieces[: array.layout.records[-1][0]])
    return array.record, merged(heads), None, repeats


class PackedWeights:
    """The weights of a model, in each layout that some block wants; those of one name side by side.

    Args:
        model: Whose they are.
        load: Reads a stored weight by its full name.
    """

    def __init__(self, model: PreparedModel, load: Load) -> None:
        self._model, self._load = model, load
        self._held: dict[_Key, tuple[npt.NDArray[np.uint8], int]] = {}
        self._written: set[tuple[str, _Key]] = set()

    def addresses(self, array: Array, repeats: tuple[str, ...]) -> list[int]:
        """Where the weight is, repetition by repetition; packed now if it was not wanted before."""
        key = _key(array, repeats)
        size = array.layout.nbytes(array.dtype, self._model.extents[array.name])
        if key not in self._held:
            step = -(-(size + SLACK) // 64) * 64
            self._held[key] = aligned(step * len(repeats)), step
        block, step = self._held[key]
        if (array.name, key) not in self._written:
            self._written.add((array.name, key))
            for n, repeat in enumerate(repeats):
                write(block[n * step : n * step + size], array, self.value(array.name, repeat))
        return [block.ctypes.data + n * step + array.offset for n in range(len(repeats))]

    def sweep(self, wanted: Sequence[tuple[Array, tuple[str, ...]]]) -> None:
        """Give back what is not wanted, if it is much."""
        used = {_key(array, repeats) for array, repeats in wanted}
        idle = [key for key in self._held if key not in used]
        if sum(self._held[key][0].nbytes for key in idle) > KEEP_BYTES:
            for key in idle:
                del self._held[key]
            self._written = {(name, key) for name, key in self._written if key in self._held}

    def value(self, name: str, repeat: str) -> npt.NDArray[Any]:
        """A weight of a repetition, not packed."""
        return weight_value(name, repeat, self._model.made, self._load)


class Arena:
    """Pages of state, with random contents that are numbers.

    Args:
        states: The states' arrays, each with its layout in a slab.
        offsets: First byte in a slab of each state, repetition by repetition.
        form: How pages lie in slabs.
        pages: How many there must be.
    """

    def __init__(self, states: Sequence[Array], offsets: Sequence[int], form: PageForm, pages: int) -> None:
        self._form = form
        slabs = -(-pages // form.slab_pages)
        self.raw = aligned(form.slab_bytes * slabs + SLACK)
        self.slabs = self.raw[: form.slab_bytes * slabs].reshape(slabs, form.slab_bytes)
        self._places = {(state.name, n % len(states)): state for n, state in enumerate(states)}
        self._names, self._offsets = [state.name for state in states], offsets
        for n, begin in enumerate(offsets):
            end = offsets[n + 1] if n + 1 < len(offsets) else form.slab_bytes
            self._fill(states[n % len(states)], begin, end)

    def _fill(self, state: Array, begin: int, end: int) -> None:
        """One slab's worth for all slabs: what is in it does not matter, as long as it is no NaN."""
        count = (end - begin) * 8 // BITS[state.dtype]
        values = np.random.default_rng(begin).standard_normal(count).astype(np.float32)
        self.slabs[:, begin:end] = stored_bits(values, state.dtype).view(np.uint8)

    def holding(self, pages: slice) -> npt.NDArray[np.uint8]:
        """The slabs with these pages, uint8 [slabs, bytes], a view."""
        each = self._form.slab_pages
        return self.slabs[pages.start // each : -(-pages.stop // each)]

    def address(self, name: str, repeat: int) -> int:
        """Where a state's share of the first slab is."""
        return self.raw.ctypes.data + self._offsets[repeat * len(self._names) + self._names.index(name)]
