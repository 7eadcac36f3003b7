"""A step whose blocks are libraries of their own, so that a search compiles what it changes and runs all of it.

    program    embed | layers: 0 1 2 3 4, thirty times | head          one C file, as it is served
    on trial   a C file a block, and ``TRIAL``, which calls the stages in the same order, each with its own tables

A stage's code is the same as in a whole program, but for what the C compiler makes of knowing all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.compiler.codegen.arrays import Inventory
from headrace.compiler.codegen.program import STEP, head, symbols_of
from headrace.compiler.codegen.stage import PartWriter
from headrace.compiler.ir import Part
from headrace.compiler.schedule.plan import PartPlan


@dataclass(frozen=True, slots=True)
class Region:
    """Stages of a part as a C file. Its functions are ``hr_stage_N(s, repeat, at, scratch)``, for each stage in order.

    Attributes:
        block: Its name.
        text: The file.
        arrays: What its tables of pointers hold.
        symbols: Order of the symbols' values.
        part: The number of the part.
        stages: The numbers of the stages in their part, in order.
        ragged_tile: Most rows of a tile of one segment; 0: it has no such tiles.
    """

    block: str
    text: str
    arrays: Inventory
    symbols: tuple[str, ...]
    part: int
    stages: tuple[int, ...]
    ragged_tile: int


def regions(parts: Sequence[tuple[Part, PartPlan]], blocks: Sequence[Sequence[str]]) -> list[Region]:
    """The blocks of a program, in the order of their first stages.

    Args:
        parts: Each part with its plan.
        blocks: Of each part, the block of each stage.

    Raises:
        CannotEmit: There is no code for a stage.
    """
    symbols = symbols_of(parts)
    turns: dict[str, int] = {}
    found: list[Region] = []
    for number, ((part, plan), named) in enumerate(zip(parts, blocks, strict=True)):
        for block in dict.fromkeys(named):
            stages = tuple(n for n, name in enumerate(named) if name == block)
            arrays = Inventory(turns=dict(turns))
            writer = PartWriter(part, plan, arrays)
            functions = writer.functions(stages)
            entries = [_entry(n, writer.stage_names()[stage]) for n, stage in enumerate(stages)]
            text = "\n".join([*head(symbols), *functions, *entries, ""])
            tile = max((plan.stages[n].row_tile for n in stages if plan.stages[n].ragged), default=0)
            found.append(Region(block, text, arrays, symbols, number, stages, tile))
        last = Inventory(turns=dict(turns))
        PartWriter(part, plan, last).close()
        turns = last.turns
    return found


def _entry(number: int, name: str) -> str:
    return (
        f"void hr_stage_{number}(const hr_step *s, int64_t repeat, hr_cursor *at, char *scratch) {{ "
        f"{name}(s, repeat, at, scratch); }}"
    )


TRIAL = f"""#include <time.h>
#include "headrace.h"
#include "headrace_pool.h"
{STEP}
typedef void (*hr_stage)(const hr_step *s, int64_t repeat, hr_cursor *at, char *scratch);

typedef struct {{
    int64_t parts;
    const int64_t *stages;          // of each part
    const int64_t *repeats;         // of each part
    const hr_stage *functions;      // of all parts
    const hr_step *const *steps;    // for each function, its own tables
    char *scratch;                  // of all threads
    int64_t scratch_bytes;          // of one
    // When each stage was over, stage by stage of the step: the time at which the first thread left it. The system may
    // take any one thread off its core for longer than many stages take.
    _Atomic int64_t *ends;
    int64_t begin;
}} hr_trial;

static void trial(void *context, int thread, int threads, hr_sync *sync) {{
    const hr_trial *t = context;
    char *const scratch = t->scratch + thread * t->scratch_bytes;
    hr_cursor at = hr_begin(sync);
    int64_t first = 0, stage = 0;
    for (int64_t part = 0; part < t->parts; first += t->stages[part++])
        for (int64_t repeat = 0; repeat < t->repeats[part]; repeat++)
            for (int64_t n = first; n < first + t->stages[part]; n++) {{
                t->functions[n](t->steps[n], repeat, &at, scratch);
                int64_t none = 0;
                atomic_compare_exchange_strong(t->ends + stage++, &none, hr_now());
            }}
}}

void hr_try(hr_pool *pool, hr_trial *t, int64_t stages) {{
    t->begin = hr_now();
    hr_pool_run(pool, trial, t, 2 * stages);  // each may wait twice
}}
"""
