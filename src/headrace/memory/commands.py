"""What an executor must be told about pages before a step: the planner decides, the executor moves the bytes.

The planner runs ahead of the executor, so it touches no byte and no table that a step may be reading. It writes down
what has become of pages since the last batch, and the next batch carries that, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.memory.page_form import Bytes, PageForm

IntArray = npt.NDArray[np.int32]

POISON = 0xFF  # a NaN in float32, float16 and bfloat16


@dataclass(frozen=True, slots=True)
class PlaceWrite:
    """Where pages lie from now on.

    Attributes:
        group: Number of their state group.
        handles: int32 [pages]; one may be there twice, with the same place.
        offsets: int64 [pages], bytes from the arena's start.
    """

    group: int
    handles: IntArray
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """The bytes of a page go to another place.

    Attributes:
        group: Number of its state group.
        source: Byte offset of the page.
        target: Where its bytes shall be.
    """

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class PagePoison:
    """Nobody may read a page any more: it is overwritten, so that a read shows.

    Attributes:
        group: Number of its state group.
        offset: Its byte offset.
    """

    group: int
    offset: int


PageCommand = PlaceWrite | PageCopy | PagePoison


def carry_out(
    commands: Iterable[PageCommand],
    forms: Sequence[PageForm],
    tables: Sequence[npt.NDArray[np.int64]],
    buffer: Bytes,
) -> None:
    """Do what a batch's commands say.

    Args:
        commands: In order.
        forms: How the pages of each group lie in the arena.
        tables: int64 [handles] of each group, an executor's own.
        buffer: uint8, the arena.
    """
    for command in commands:
        match command:
            case PlaceWrite(group, handles, offsets):
                tables[group][handles] = offsets
            case PageCopy(group, source, target):
                pairs = (forms[group].pieces(buffer, offset) for offset in (source, target))
                for old, new in zip(*pairs, strict=True):
                    new[:] = old
            case PagePoison(group, offset):
                for pieces in forms[group].pieces(buffer, offset):
                    pieces[:] = POISON
