"""What programs are tried on: kinds of steps, and each as a program wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.search.bound import Workload, step_work
from headrace.runtime.compile import PreparedModel
from headrace.runtime.native_program import SLACK, aligned
from headrace.runtime.state_layout import PAGE_TOKENS

CONTEXT = 200  # tokens of a sequence that decodes
PREFILL = 512
CHECKED = ((0, 5), (300, 1), (40, 13), (255, 3), (0, 1))  # (tokens before, tokens now): every kind of rest
MOST_WEIGHT_BYTES = 2 << 30  # of larger models some layers stand for all
DECODES = (1, 8, 32)

Ints = npt.NDArray[np.int32]


def workloads(context: int) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """What is checked and timed, and the names of the workloads; each prefill with shorter ones that may stand for it.

    Args:
        context: Most tokens of a sequence.
    """
    start, prompt = min(CONTEXT, context // 2), min(PREFILL, context)
    checked = tuple((min(before, context - now), now) for before, now in CHECKED if now <= context)
    decodes = [Workload(f"decode_b{count}", ((start, 1),) * count) for count in DECODES]
    name = f"prefill_{prompt}"
    prefills = [Workload(name, ((0, tokens),)) for tokens in (prompt, prompt // 2, prompt // 4) if tokens]
    return (Workload("checked", checked), *decodes, *prefills), (*(load.name for load in decodes), name)


def measured_repeats(prepared: PreparedModel) -> tuple[int, ...]:
    """How often each part runs while breeding: as often as in a step, unless the weights take too much memory."""
    total = step_work(prepared.program.parts, Workload("", ((0, 1),))).bytes
    found = []
    for part in prepared.program.parts:
        count = len(part.repeats)
        most = max(1, int(count * min(1.0, MOST_WEIGHT_BYTES / max(total, 1.0))))
        # Parts hand values on in two buffers in turn: as many turns, odd or even, as in a step.
        found.append(most if (count - most) % 2 == 0 else min(count, most + 1))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Batch:
    """A workload as a program wants it.

    Attributes:
        sizes: Values of the symbols.
        arguments: int32, each with room behind it.
        offsets: int32 [rows + 1], first token of each row.
        pages: Of the arena, those that it reads and writes, and no other batch that reads what it did not write.
    """

    sizes: Mapping[str, int]
    arguments: Mapping[str, Ints]
    offsets: Ints
    pages: slice


def batch_of(load: Workload, positions: int, row_pages: int, vocab: int, first_page: int = 0) -> Batch:
    """Random tokens for a workload, its sequences' pages in any order.

    Args:
        load: How many tokens.
        positions: See ``PreparedModel``.
        row_pages: Columns of the table of pages.
        vocab: Tokens that there are.
        first_page: Where its pages begin in the arena.
    """
    rng = np.random.default_rng(len(load.rows))
    starts = np.array([start for start, _ in load.rows])
    counts = np.array([count for _, count in load.rows])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    total, rows = int(offsets[-1]), len(load.rows)
    used = -(-(starts + counts) // PAGE_TOKENS)
    pages = int(used.sum())
    order = first_page + rng.permutation(pages)
    table = np.zeros((rows, row_pages), np.int32)
    for row, (first, count) in enumerate(zip(np.cumsum(used) - used, used, strict=True)):
        table[row, :count] = order[first : first + count]
    longest = int((starts + counts).max())
    most = -(-longest // PAGE_TOKENS)
    arguments: dict[str, npt.NDArray[Any]] = {
        "tokens": rng.integers(0, vocab, total),
        "positions": np.arange(total) + np.repeat(starts - offsets[:-1], counts),
        "row": np.repeat(np.arange(rows), counts),
        "page_rows": table.reshape(-1),
        "select": offsets[1:] - 1,
    }
    sizes = {"T": total, "B": rows, "N": first_page + pages, "P": most, "S": most * PAGE_TOKENS, "R": rows}
    sizes["NB"] = -(-longest // positions)
    return Batch(
        sizes,
        {name: _roomy(values) for name, values in arguments.items()},
        offsets,
        slice(first_page, first_page + pages),
    )


def _roomy(values: npt.NDArray[Any]) -> Ints:
    held = aligned(values.size * 4 + SLACK).view(np.int32)[: values.size]
    held[:] = values
    return held
