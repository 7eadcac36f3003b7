import ctypes
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compiler.native import pool as pool_module
from headrace.compiler.native.build import HEADERS, Builder, Source
from headrace.compiler.native.pool import PoolUnusable, ThreadPool, pinning

KERNELS = Path(__file__).parents[1] / "support" / "native_kernels.c"
POOL = Path(pool_module.__file__).with_name("pool.c")

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)


@pytest.fixture(scope="module")
def kernels():
    return Builder().load(Source("kernels", KERNELS.read_text(), flags=("-O2",)))


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request):
    with ThreadPool(request.param, spin_seconds=2e-6, idle_seconds=5e-6) as made:
        yield made


def run_stages(pool, kernel, tasks):
    total = sum(tasks)
    counts, whole = np.zeros(total, np.int64), np.zeros(total, np.int64)
    taken = np.zeros(pool.threads * 8, np.int64)
    pool.call(kernel, [counts, whole, taken], [len(tasks), *tasks])
    return counts, whole, taken


def threads_of_this_process():
    return len(os.listdir("/proc/self/task"))


@settings(max_examples=60)
@given(tasks=st.lists(st.integers(0, 40), max_size=40))
def test_every_task_once_and_stage_after_stage(pool, kernels, tasks):
    counts, whole, taken = run_stages(pool, kernels.stages, tasks)
    assert (counts == 1).all()
    assert (whole == 1).all()
    assert taken.sum() == sum(tasks)


def test_many_stages(pool, kernels):
    counts, whole, _ = run_stages(pool, kernels.stages, [3] * 5000)
    assert (counts == 1).all()
    assert (whole == 1).all()


def test_barriers(pool, kernels):
    cells, right = np.zeros(pool.threads * 8, np.int64), np.zeros(pool.threads * 8, np.int64)
    pool.call(kernels.barriers, [cells, right], [50])
    assert (right[::8] == 50).all()


def test_workers_begin_while_the_caller_does_something_else(kernels):
    with ThreadPool(2) as pool:
        counts, whole = np.zeros(40, np.int64), np.zeros(40, np.int64)
        taken, sizes = np.zeros(16, np.int64), np.array([4, 10, 10, 10, 10], np.int64)
        addresses = (ctypes.c_void_p * 3)(counts.ctypes.data, whole.ctypes.data, taken.ctypes.data)
        kernels.stages_later(ctypes.c_void_p(pool.handle), addresses, ctypes.c_void_p(sizes.ctypes.data))
        deadline = time.monotonic() + 20
        while counts.sum() < 40 and time.monotonic() < deadline:
            time.sleep(1e-3)
        assert (taken[0], taken[8]) == (0, 40)
        pool.join()
        assert (counts == 1).all()
        kernels.stages_later(ctypes.c_void_p(pool.handle), addresses, ctypes.c_void_p(sizes.ctypes.data))
    # close() ended a run that nobody joined


def test_rounding_is_the_same_on_every_thread(pool, kernels):
    out = np.zeros(pool.threads + 1, np.float32)
    pool.call(kernels.denormals, [out], [])
    assert (out[:-1] == np.float32(1e-38) * np.float32(0.01)).all()
    assert out[-1] == 1  # and the caller's state is as it was


def test_calls_from_several_python_threads_follow_each_other(kernels):
    results = []
    with ThreadPool(2) as pool:

        def calls():
            results.extend(run_stages(pool, kernels.stages, [5, 3, 9])[0] for _ in range(50))

        threads = [threading.Thread(target=calls) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 150
    assert all((counts == 1).all() for counts in results)


def test_the_interpreter_lock_is_released(kernels):
    text = "#include <unistd.h>\nvoid nap(void *p, void *const *b, const long *s) { usleep(200000); }"
    nap = Builder().load(Source("nap", text)).nap
    with ThreadPool(1) as pool:
        thread = threading.Thread(target=pool.call, args=(nap, [], []))
        thread.start()
        begin = time.monotonic()
        for _ in range(1000):
            pass
        assert time.monotonic() - begin < 0.15
        assert thread.is_alive()
        thread.join()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux lists them")
def test_threads_end():
    before = threads_of_this_process()
    pool = ThreadPool(4)
    assert threads_of_this_process() == before + 3
    pool.close()
    pool.close()
    assert threads_of_this_process() == before
    with pytest.raises(PoolUnusable, match="is closed"):
        _ = pool.handle
    pool = ThreadPool(3)
    assert threads_of_this_process() == before + 2
    del pool
    gc.collect()
    assert threads_of_this_process() == before
    ThreadPool(1).close()


def test_a_process_ends_with_an_open_pool():
    code = "from headrace.compiler.native.pool import ThreadPool\npool = ThreadPool(3)\nprint('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_forked_child_is_refused_and_makes_its_own():
    code = """
import os
from headrace.compiler.native.pool import PoolUnusable, ThreadPool
pool = ThreadPool(2)
if os.fork() == 0:
    try:
        pool.handle
    except PoolUnusable as error:
        assert "parent process" in str(error)
        pool.close()
        ThreadPool(2).close()
        os._exit(7)
    os._exit(1)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7, status
pool.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_more_stages_than_announced_is_a_trap():
    code = f"""
from pathlib import Path
from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.pool import ThreadPool
kernels = Builder().load(Source("kernels", Path({str(KERNELS)!r}).read_text(), flags=("-O2",)))
ThreadPool(1).call(kernels.more_stages_than_announced, [], [])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode < 0


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_numbers_of_threads(threads):
    with pytest.raises(PoolUnusable, match="ask for 1 to"):
        ThreadPool(threads)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_no_threads_to_be_had():
    code = """
import resource
from headrace.compiler.native.pool import PoolUnusable, ThreadPool
ThreadPool(2).close()
import os
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    ThreadPool(500)
except PoolUnusable as error:
    print(error)
assert len(os.listdir("/proc/self/task")) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "a pool of 500 threads cannot be made" in done.stdout, done.stderr


def test_pinning():
    assert pinning(3, (0, 2, 4, 6)) == (2, 4)
    assert pinning(3, (0, 2)) == (-1, -1)
    assert pinning(1, ()) == ()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_pinned_workers_still_work(kernels):
    with ThreadPool(2, pin=True) as pool:
        counts, _, _ = run_stages(pool, kernels.stages, [5, 5])
        assert (counts == 1).all()
        cores = sorted(os.sched_getaffinity(0))
        deadline = time.monotonic() + 10
        while len(cores) > 1 and pool.cpus == (-1,) and time.monotonic() < deadline:
            time.sleep(1e-3)
        assert pool.cpus in ((cpu,) for cpu in (*cores[1:], -1))


@pytest.mark.parametrize(
    "flags", [(), ("-DHR_NO_FUTEX",), ("-fsanitize=thread",), ("-fsanitize=thread", "-DHR_NO_FUTEX")]
)
def test_under_stress(tmp_path, flags):
    """Also with condition variables in place of futexes, as on macOS; also under the thread sanitizer."""
    compiler = Builder().compiler
    program = tmp_path / "stress"
    build = [*compiler.command, "-std=gnu11", "-g", "-O1", "-DMAIN", *flags, f"-I{HEADERS}", str(KERNELS), str(POOL)]
    built = subprocess.run([*build, "-o", str(program), "-pthread"], capture_output=True, text=True)
    if built.returncode and "-fsanitize=thread" in flags:
        pytest.skip("no thread sanitizer here")
    assert not built.returncode, built.stderr
    done = subprocess.run([str(program), "1000"], capture_output=True, text=True, timeout=100)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this system")
    assert done.returncode == 0, done.stdout + done.stderr
