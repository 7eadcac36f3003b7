"""A program's parts as one C file: stages to a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.compiler.codegen.arrays import Inventory
from headrace.compiler.codegen.stage import PartWriter
from headrace.compiler.ir import Part
from headrace.compiler.schedule.plan import PartPlan


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """C, and what to call it with.

    Attributes:
        text: The file.
        arrays: What its tables of pointers hold.
        symbols: Order of the symbols' values.
        stages: How many waits a step has at most.
        names: Of the stages, each once.
        parts: Of the parts.
    """

    text: str
    arrays: Inventory
    symbols: tuple[str, ...]
    stages: int
    names: tuple[str, ...]
    parts: tuple[str, ...]


def generate(parts: Sequence[tuple[Part, PartPlan]]) -> ProgramSource:
    """The C file of a program.

    Args:
        parts: Each part with its plan.
    """
    arrays = Inventory()
    symbols = symbols_of(parts)
    functions: list[str] = []
    calls: list[str] = []
    names: list[str] = []
    parts_done: list[str] = []
    stages = 0
    for part, plan in parts:
        writer = PartWriter(part, plan, arrays)
        functions += writer.functions()
        stages += 2 * len(plan.stages) * len(part.repeats)  # for a prologue, and for the tasks
        writer.close()
        calls += _calls(part, writer.stage_names(), len(names), len(parts_done))
        parts_done.append(part.name)
        names += writer.stage_names()
    text = "\n".join([*head(symbols), *functions, *_entry(calls), ""])
    return ProgramSource(text, arrays, symbols, stages, tuple(names), tuple(parts_done))


def symbols_of(parts: Sequence[tuple[Part, PartPlan]]) -> tuple[str, ...]:
    """The symbols of a program, in the order in which a step has their values."""
    extents = {axis.extent for part, _ in parts for axis in part.graph.axes.values()}
    return tuple(sorted(extent for extent in extents if isinstance(extent, str)))


def head(symbols: Sequence[str]) -> list[str]:
    """What stands above the functions."""
    includes = ["#include <time.h>", '#include "headrace.h"', '#include "headrace_pool.h"', ""]
    sizes = [f"#define size_{name} (s->sizes[{n}])" for n, name in enumerate(symbols)]
    return [*includes, *STEP.strip().split("\n"), "", *sizes, ""]


STEP = """
#define ROUNDS 6  // shares in a stretch, at most
typedef struct {
    const int64_t *sizes;           // values of the symbols
    const void *const *weights;     // repetition by repetition
    const void *const *arguments;
    char *const *states;            // repetition by repetition
    char *const *buffers;
    char *scratch;                  // of all threads
    int64_t scratch_bytes;          // of one
    int64_t tiles;                  // shares of rows that are of one segment each:
    const int32_t *tile_segment;
    const int32_t *tile_begin;
    const int32_t *tile_end;
    int64_t weight_count, state_count;  // in one repetition
    int64_t threads;
    int64_t first_part, last_part;  // which parts run: from the first, to the one before the last
    int64_t *spent;                 // nanoseconds in each of the stages, of the first thread; or null
} hr_step;
typedef struct {
    int64_t begin, end;
} hr_share;

// Tasks are cut into a stretch for each thread, and a stretch into shares: half of it, half of the rest, and so on.
// Claims go from stretch to stretch. So a thread that keeps up stays in one and reads weights from one place after the
// other, which memory is fastest at; one that is late leaves its last shares to others.
HR_INLINE int64_t hr_rounds(int64_t tasks, int64_t threads) {
    const int64_t longest = hr_steps(tasks, threads);
    int64_t rounds = 1;
    while (rounds < ROUNDS && longest >> rounds) rounds++;
    return rounds;
}
HR_INLINE hr_share hr_share_of(int64_t claim, int64_t tasks, int64_t threads, int64_t rounds) {
    const int64_t stretch = claim % threads, round = claim / threads;
    const int64_t begin = stretch * tasks / threads, end = (stretch + 1) * tasks / threads, size = end - begin;
    return (hr_share){end - (size >> round), round + 1 < rounds ? end - (size >> (round + 1)) : end};
}
HR_INLINE int64_t hr_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
HR_INLINE int64_t hr_spend(int64_t *spent, int stage, int64_t since) {
    const int64_t now = hr_now();
    spent[stage] += now - since;
    return now;
}
"""


def _calls(part: Part, names: Sequence[str], first: int, number: int) -> list[str]:
    repeated = len(part.repeats) > 1
    lines = []
    for n, name in enumerate(names):
        lines.append(f"{name}(s, {'repeat' if repeated else '0'}, &at, scratch);")
        lines.append(f"if (spent) since = hr_spend(spent, {first + n}, since);")
    guard = f"if (s->first_part <= {number} && {number} < s->last_part)"
    loop = f" for (int64_t repeat = 0; repeat < {len(part.repeats)}; repeat++)" if repeated else ""
    return [f"    {guard}{loop} {{  // {part.name}", *(f"        {line}" for line in lines), "    }"]


def _entry(calls: Sequence[str]) -> list[str]:
    return [
        "static void step(void *context, int thread, int threads, hr_sync *sync) {",
        "    const hr_step *s = context;",
        "    char *const scratch = s->scratch + thread * s->scratch_bytes;",
        "    hr_cursor at = hr_begin(sync);",
        "    int64_t *const spent = thread ? 0 : s->spent;",
        "    int64_t since = spent ? hr_now() : 0;",
        *calls,
        "}",
        "",
        "void hr_run(hr_pool *pool, hr_step *s, int64_t stages) { hr_pool_run(pool, step, s, stages); }",
        "void hr_start(hr_pool *pool, hr_step *s, int64_t stages) { hr_pool_start(pool, step, s, stages); }",
    ]
