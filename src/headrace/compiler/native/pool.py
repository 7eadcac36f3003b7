"""The persistent thread pool that compiled steps run on: one native thread fewer than asked for; the caller joins.

``include/headrace_pool.h`` is what generated code sees of it, and says how a step is divided.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.cores import default_threads, one_a_core, usable_cpus
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    CFunction = ctypes._NamedFuncPointer

SPIN_SECONDS = 20e-6
IDLE_SECONDS = 100e-6
MAX_THREADS = 1024


class PoolUnusable(HeadraceError):
    """A thread pool cannot be made, or cannot be used any more."""


class ThreadPool:
    """Native threads that wait for steps.

    Closed by ``close``, as a context manager, or when nobody holds it any more; otherwise its threads end with the
    process. A process forked from this one has the object but none of its threads: there it is refused.

    Args:
        threads: The calling thread included. Default: one a core that this process may use.
        pin: Tie each worker to a core of its own; what the system refuses is left out. Off by default: measured on
            two cores it gains nothing alone and loses beside a busy process.
        spin_seconds: How long a thread that waits within a run spins before it sleeps.
        idle_seconds: How long a worker spins for the next run.

    Raises:
        PoolUnusable: The system gives no such number of threads.
        ToolchainError: It cannot be compiled here.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        pin: bool = False,
        spin_seconds: float = SPIN_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        if not 1 <= self.threads <= MAX_THREADS:
            raise PoolUnusable(f"a pool of {threads} threads cannot be made: ask for 1 to {MAX_THREADS}")
        library = _library()
        cpus = pinning(self.threads, one_a_core(usable_cpus()) if pin else ())
        places = (ctypes.c_int32 * max(1, len(cpus)))(*cpus)
        ctypes.set_errno(0)
        handle = library.hr_pool_open(self.threads, places, round(spin_seconds * 1e9), round(idle_seconds * 1e9))
        if not handle:
            why = os.strerror(ctypes.get_errno() or errno.ENOMEM)
            raise PoolUnusable(f"a pool of {self.threads} threads cannot be made: {why}. Ask for fewer threads.")
        self._library, self._handle, self._process = library, int(handle), os.getpid()
        self._lock = threading.Lock()  # between calls and close()
        self._end = weakref.finalize(self, _close, library, self._handle, self._process)
        self._end.atexit = False  # a daemon thread may be in a call; the workers end with the process

    @property
    def handle(self) -> int:
        """The address of the ``hr_pool``, for native code.

        Raises:
            PoolUnusable: It is closed, or belongs to the process that this one was forked from.
        """
        if not self._end.alive:
            raise PoolUnusable("this thread pool is closed: make another one")
        if os.getpid() != self._process:
            raise PoolUnusable("this thread pool belongs to the parent process: make another one after the fork")
        return self._handle

    @property
    def cpus(self) -> tuple[int, ...]:
        """The processor that each worker is pinned to; -1: none, or it has not started yet."""
        return tuple(self._library.hr_pool_cpu(self.handle, i) for i in range(1, self.threads))

    def call(self, kernel: CFunction, buffers: Sequence[npt.NDArray[Any] | int], sizes: Sequence[int]) -> None:
        """Call a kernel, ``void kernel(hr_pool *, void *const *buffers, const int64_t *sizes)``.

        The interpreter lock is released meanwhile. Calls from several threads follow each other.

        Args:
            kernel: The function, out of a loaded library.
            buffers: Arrays, or addresses of memory that outlives the call.
            sizes: The values of the symbolic dimensions.
        """
        addresses = [item if isinstance(item, int) else item.ctypes.data for item in buffers]
        with self._lock:
            kernel(
                ctypes.c_void_p(self.handle),
                (ctypes.c_void_p * len(addresses))(*addresses),
                (ctypes.c_int64 * len(sizes))(*sizes),
            )

    def join(self) -> None:
        """Take part in the run that native code began with ``hr_pool_start``, and return at its end."""
        self._library.hr_pool_join(ctypes.c_void_p(self.handle))

    def close(self) -> None:
        """End the threads, after a call that is under way. May be called again."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pinning(threads: int, cpus: Sequence[int]) -> tuple[int, ...]:
    """Where each worker goes: not to the first core, which is left to the calling thread; -1: anywhere.

    Nobody is pinned where there are fewer cores than threads.
    """
    if len(cpus) < threads:
        return (-1,) * (threads - 1)
    return tuple(cpus[1:threads])


@functools.cache
def _library() -> ctypes.CDLL:
    return pool_library(ctypes.CDLL(str(pool_path()), use_errno=True))


def pool_path() -> Path:
    """The compiled pool, for a process that loads it by itself."""
    return Builder().build(_source()).path


def _source() -> Source:
    return Source("pool", Path(__file__).with_name("pool.c").read_text(), flags=("-O2",))


def pool_library(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions of the pool their types."""
    library.hr_pool_open.restype = ctypes.c_void_p
    library.hr_pool_open.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.hr_pool_close.argtypes = [ctypes.c_void_p]
    library.hr_pool_close.restype = None
    library.hr_pool_join.argtypes = [ctypes.c_void_p]
    library.hr_pool_join.restype = None
    library.hr_pool_cpu.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def _close(library: ctypes.CDLL, handle: int, process: int) -> None:
    if os.getpid() == process:
        library.hr_pool_close(handle)
