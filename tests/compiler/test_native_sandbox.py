import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.compiler.native import sandbox as sandbox_module
from headrace.compiler.native import sandbox_process
from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.case import Case, Input, Output, Tolerance, compare
from headrace.compiler.native.sandbox import Candidate, Sandbox
from headrace.compiler.native.sandbox_process import SandboxError
from headrace.compiler.native.toolchain import BuildFailed
from headrace.compiler.native.verdict import NotFinite, OutOfBounds, Passed, TimedOut, Wrong
from headrace.errors import InvalidInput

SUPPORT = Path(__file__).parents[1] / "support"
N = 1000

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)


def build(name, *, sanitize=False):
    text = (SUPPORT / f"native_{name}.c").read_text()
    return Builder().build(Source(name, text, flags=("-O1",), sanitize=sanitize)).path


@pytest.fixture(scope="module")
def hostile():
    return build("hostile")


@pytest.fixture(scope="module")
def box():
    with Sandbox(2, seconds=0.5) as made:
        yield made


@pytest.fixture(scope="module")
def case():
    x = np.arange(N, dtype=np.float32)
    made = Case([Input(x), Output(2 * x)], [N])
    yield made
    made.close()


FATES = {
    "segfault": "crashed: SIGSEGV",
    "endless": "did not return within 0.5 s",
    "makes_nan": "operand 1 has 1 elements that are not finite, the first at [7]",
    "makes_infinity": "operand 1 has 1 elements that are not finite, the first at [7]",
    "leaves_one_out": f"operand 1 has 1 elements that are not finite, the first at [{N - 1}]",
    "is_wrong": "operand 1 is wrong in 2 elements, by 3 at [6]",
    "writes_after": "wrote to memory 0 bytes after the end of operand 1",
    "writes_before": "wrote to memory 1 bytes before the begin of operand 1",
    "copies_too_much": "wrote to memory 0 bytes after the end of operand 1",
    "adds_too_much": "wrote to memory 2 bytes after the end of operand 1",
    "writes_input": "crashed: SIGSEGV",
    "exits": "ended the process with code 0",
    "exits_quickly": "ended the process with code 0",
    "closes_files": "ended the process with code 120",
    "is_noisy": None,
    "writes_to_the_socket": "cut its connection or wrote to it",
    "is_hungry": "crashed: SIGSEGV",
    "aborts": "crashed: SIGABRT",
    "stops_itself": "did not return within 0.5 s",
    "kills_its_session": "crashed: SIGKILL",
    "recurses": "crashed: SIGSEGV",
    "crashes_on_another_thread": "crashed: SIGSEGV",
    "no_such_function": "undefined symbol",
}


@needs_compiler
@pytest.mark.parametrize("name", FATES)
def test_after_each_the_next_good_one_gets_its_result(box, case, hostile, name):
    verdict = box.check(Candidate(hostile, name), case)
    if FATES[name] is None:
        assert verdict.kind == "ok"
    else:
        assert FATES[name] in str(verdict)
        assert verdict.kind != "ok"
    assert isinstance(box.check(Candidate(hostile, "good"), case), Passed)


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer is loaded as Linux does")
def test_a_sanitizer_build_says_where(case):
    try:
        library = build("hostile", sanitize=True)
        made = Sandbox(2, seconds=2.0, sanitize=True)
    except BuildFailed:
        pytest.skip("no address sanitizer here")
    expected = {
        "reads_after": "AddressSanitizer: use-after-poison",
        "writes_after": "AddressSanitizer: use-after-poison",
        "shifts_too_far": "runtime error: shift exponent 40",
        "segfault": "AddressSanitizer: SEGV",
        "exits": None,
    }
    with made as box:
        for name, report in expected.items():
            verdict = box.check(Candidate(library, name), case)
            assert verdict.kind == ("sanitizer" if report else "crashed"), verdict
            if report:
                assert report in str(verdict)
                assert f"in {name}" in verdict.report
            assert box.check(Candidate(library, "good"), case).kind == "ok"


@needs_compiler
def test_what_is_timed_was_checked_and_in_turn(box, case, hostile):
    names = ["good", "is_wrong", "slow", "segfault", "good"]
    verdicts = box.time_together([(Candidate(hostile, name), case) for name in names], samples=3)
    assert [verdict.kind for verdict in verdicts] == ["ok", "wrong", "ok", "crashed", "ok"]
    good, _, slow, _, again = verdicts
    assert good.samples == slow.samples == 3
    assert 0 < good.best <= good.seconds < slow.seconds
    assert again.seconds < slow.seconds


@needs_compiler
def test_the_hopeless_are_dropped_after_a_round(box, case, hostile):
    verdicts = box.time_together([(Candidate(hostile, n), case) for n in ("good", "slow")], samples=4, drop_above=3.0)
    assert [verdict.samples for verdict in verdicts] == [4, 1]


@needs_compiler
@pytest.mark.parametrize(("name", "kind"), [("fails_later", "crashed"), ("is_wrong_later", "wrong")])
def test_one_that_goes_wrong_while_it_is_timed_hurts_no_other(case, hostile, name, kind):
    with Sandbox(1, seconds=2.0) as box:
        trials = [(Candidate(hostile, name), case), (Candidate(hostile, "good"), case)]
        assert [verdict.kind for verdict in box.time_together(trials, samples=3)] == [kind, "ok"]


@needs_compiler
def test_cold_finds_nothing_in_the_caches(box, hostile):
    x = np.arange(1 << 16, dtype=np.float32)
    case = Case([Input(x), Output(2 * x)], [x.size])
    warm, cold = (box.time(Candidate(hostile, "wanders"), case, cold=cold).seconds for cold in (False, True))
    assert 1.5 * warm < cold
    case.close()


@needs_compiler
def test_in_place_and_on_the_pool(box, hostile):
    start = np.arange(50, dtype=np.float32)
    case = Case([Output(start + 3, start=start)], [50, 3])
    assert box.time(Candidate(hostile, "adds_one"), case).kind == "ok"
    assert box.check(Candidate(hostile, "adds_one"), case).kind == "ok"
    other = Case([Input(start), Output(2 * start)], [50])
    assert box.time(Candidate(build("kernels"), "doubled"), other).kind == "ok"
    case.close()
    case.close()
    del other
    gc.collect()
    assert box.check(Candidate(hostile, "adds_one"), Case([Output(start, start=start)], [50, 0])).kind == "ok"
    assert len(box._shared) <= 2  # what is closed, or held by nobody, is taken out of the child
    with pytest.raises(InvalidInput, match="is closed"):
        box.check(Candidate(hostile, "adds_one"), case)


@needs_compiler
def test_a_library_that_is_none(box, case, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    for path in (tmp_path / "text.so", tmp_path / "missing.so"):
        assert box.check(Candidate(path, "f"), case).kind == "build_failed"


@needs_compiler
def test_a_child_serves_many_and_is_changed_after_some_libraries(case, hostile, monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox_module, "CANDIDATES_A_CHILD", 2)
    children = []
    with Sandbox(1) as box:
        for i in range(5):
            copy = tmp_path / f"{i}.so"
            shutil.copyfile(hostile, copy)
            for _ in range(2):
                assert box.check(Candidate(copy, "good"), case).kind == "ok"
                children.append(box._child.process.pid)
    assert len(set(children)) == 3
    for child in set(children):
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


@needs_compiler
def test_a_child_that_dies_between_two_candidates(box, case, hostile):
    assert box.check(Candidate(hostile, "good"), case).kind == "ok"
    os.kill(box._child.process.pid, signal.SIGKILL)
    assert box.check(Candidate(hostile, "good"), case).kind == "ok"


@needs_compiler
def test_the_victim_of_an_earlier_candidate_is_not_rejected(case, hostile):
    with Sandbox(1, seconds=2.0) as box:
        for _ in range(5):
            assert box.check(Candidate(hostile, "leaves_a_thread_that_crashes"), case).kind == "ok"
            deadline = time.monotonic() + 0.06
            while time.monotonic() < deadline:
                assert box.check(Candidate(hostile, "good"), case).kind == "ok"


@needs_compiler
def test_a_child_that_cannot_start(case, hostile, monkeypatch):
    monkeypatch.setattr(sandbox_process.sys, "executable", shutil.which("false"))
    with Sandbox(1) as box, pytest.raises(SandboxError, match="does not start"):
        box.check(Candidate(hostile, "good"), case)


@needs_compiler
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes as Linux lists them")
def test_the_child_ends_with_its_parent_and_holds_no_package(tmp_path):
    code = f"""
import numpy as np, os, sys
from pathlib import Path
from headrace.compiler.native.case import Case, Input, Output
from headrace.compiler.native.sandbox import Candidate, Sandbox
box = Sandbox(2)
x = np.ones(8, np.float32)
print(box.check(Candidate(Path({str(build("hostile"))!r}), "good"), Case([Input(x), Output(2 * x)], [8])).kind)
maps = open(f"/proc/{{box._child.process.pid}}/maps").read()
print("torch" in maps or "numpy" in maps, "torch" in sys.modules)
print(box._child.process.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    kind, packages, child = done.stdout.splitlines()
    assert (kind, packages) == ("ok", "False False"), done.stderr
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}/cmdline") and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


shapes = npst.array_shapes(min_dims=0, max_dims=3, max_side=5)


@given(st.lists(st.one_of(npst.arrays(np.float32, shapes), npst.arrays(np.int8, shapes)), max_size=6), st.data())
def test_a_case_is_laid_out_without_overlap(arrays, data):
    operands = [Input(a) if data.draw(st.booleans()) else Output(a, start=a) for a in arrays]
    case = Case(operands, [1, -2])
    spans = sorted([*case.places, *case.guards()])
    for region in (0, 1):
        inside = [(begin, end) for place, begin, end in spans if place == region]
        assert inside[0][0] == 0
        assert all(a[1] == b[0] for a, b in itertools.pairwise(inside) if a[0] != b[0] and a[1] != a[0])
        assert max(end for _, end in inside) == case.bytes[region]
    assert all(begin % 64 == 0 for _, begin, _ in case.places)
    case.reset()
    nan = any(np.isnan(a.expected).any() for a in operands if isinstance(a, Output))
    assert (case.judge() is not None) == nan
    case.close()


def output(expected, **more):
    return Output(np.asarray(expected), **more)


def test_bit_equality_tells_zeros_apart():
    zero = np.zeros(3, np.float32)
    assert compare(0, -zero, output(zero)).kind == "wrong"
    assert compare(0, -zero, output(zero, tolerance=Tolerance(0.0))) is None


def test_the_worst_element_is_named():
    expected = np.array([[1.0, 100.0], [0.0, 4.0]])
    found = np.array([[1.5, 101.0], [0.0, 4.0]])
    verdict = compare(3, found, output(expected, tolerance=Tolerance(0.0, 0.02)))
    assert verdict == Wrong(output=3, error=0.5, where=(0, 0), count=1)
    assert compare(3, found, output(expected, tolerance=Tolerance(0.5))).where == (0, 1)


def test_infinity_only_where_it_is_expected():
    expected = np.array([-np.inf, 1, 2], np.float32)
    assert compare(0, expected.copy(), output(expected, tolerance=Tolerance(0.1, 0.1))) is None
    assert compare(0, -expected, output(expected, tolerance=Tolerance(9.0))) == NotFinite(0, (0,), 1)
    found = np.array([0, 1, 2], np.float32)
    assert compare(0, found, output(expected, tolerance=Tolerance(9.0, 9.0))).where == (0,)


def test_a_nan_is_wrong_even_where_one_is_expected():
    nan = np.array([np.nan], np.float32)
    assert compare(0, nan, output(nan)).kind == "not_finite"


def test_bfloat16():
    expected = np.array([0x3F80, 0x4000], np.uint16)  # 1, 2
    found = np.array([0x3F81, 0x7FC0], np.uint16)
    kind = {"element": "bf16"}
    assert compare(0, found, output(expected, tolerance=Tolerance(0.1), **kind)) == NotFinite(0, (1,), 1)
    assert compare(0, found[:1], output(expected[:1], tolerance=Tolerance(0.1), **kind)) is None
    assert compare(0, found[:1], output(expected[:1], **kind)).error == pytest.approx(2**-7)


@given(npst.arrays(np.int32, shapes), npst.arrays(np.int32, shapes))
def test_integers(a, b):
    if a.shape == b.shape:
        verdict = compare(0, a, output(b))
        assert (verdict is None) == bool((a == b).all())
        if verdict is not None:
            assert verdict.count == (a != b).sum()
            assert verdict.error == np.abs(a.astype(np.int64) - b).max()


def test_records():
    assert str(TimedOut(0.5)) == "did not return within 0.5 s"
    assert "before the begin of operand 2" in str(OutOfBounds(2, -4))


@pytest.mark.parametrize(
    ("operands", "sizes", "field"),
    [
        ([output(np.zeros(3), start=np.zeros(4))], [], r"operands\[0\]"),
        ([output(np.zeros(3), start=np.zeros(3, np.float32))], [], r"operands\[0\]"),
        ([Input(np.zeros(1)), output(np.zeros(3), element="bf16")], [], r"operands\[1\]"),
        ([Input(np.array([None]))], [], r"operands\[0\]"),
        ([], [1, 1 << 63], r"sizes\[1\]"),
    ],
)
def test_cases_that_make_no_sense(operands, sizes, field):
    with pytest.raises(InvalidInput, match=field):
        Case(operands, sizes)
