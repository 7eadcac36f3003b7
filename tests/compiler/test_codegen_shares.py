"""How a stage's tasks are cut into shares: each task is in one, and a thread that keeps up goes straight on."""

import ctypes
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.compiler.build import HEADER
from headrace.compiler.codegen.program import STEP
from headrace.compiler.native.build import Builder, Source

TEXT = f"""
#include <time.h>
#include "headrace.h"
{STEP}
int64_t rounds(int64_t tasks, int64_t threads) {{ return hr_rounds(tasks, threads); }}
void share(int64_t claim, int64_t tasks, int64_t threads, int64_t *to) {{
    const hr_share found = hr_share_of(claim, tasks, threads, hr_rounds(tasks, threads));
    to[0] = found.begin, to[1] = found.end;
}}
"""


@pytest.fixture(scope="module")
def shares():
    library = Builder().load(Source("shares", TEXT, ((HEADER.name, HEADER.read_text()),), ("-O1",)))
    library.rounds.restype = ctypes.c_int64

    def of(tasks, threads):
        count = ctypes.c_int64(tasks), ctypes.c_int64(threads)
        found = []
        for claim in range(library.rounds(*count) * threads):
            to = (ctypes.c_int64 * 2)()
            library.share(ctypes.c_int64(claim), *count, to)
            found.append((to[0], to[1]))
        return found

    return of


@given(tasks=st.integers(0, 5000), threads=st.integers(1, 64))
@example(tasks=0, threads=2)
@example(tasks=1, threads=64)
def test_every_task_is_in_one_share(shares, tasks, threads):
    found = shares(tasks, threads)
    assert sorted(task for begin, end in found for task in range(begin, end)) == list(range(tasks))
    for thread in range(threads):
        stretch = found[thread::threads]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(stretch))
