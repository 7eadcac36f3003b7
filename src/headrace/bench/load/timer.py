"""A timer that is punctual to a tenth of a millisecond, where the system has one.

The event loop's own timers are whole milliseconds, which a request would be sent late by. Linux wakes a loop by a file
descriptor at a moment of the monotonic clock (timerfd_create(2)); elsewhere the loop's timers serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

CLOCK_MONOTONIC = 1
TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME = 0o4000, 0o2000000, 1
NANOSECONDS = 1_000_000_000


class Timer(Protocol):
    """Calls a function at a moment of ``time.monotonic()``, perhaps a little early, once for each time it is set."""

    def set(self, moment: float) -> None:
        """Call at ``moment``, in place of what was set before."""
        ...

    def close(self) -> None:
        """Call no more."""
        ...


def timer(call: Callable[[], None]) -> Timer:
    """A timer of the running event loop."""
    if sys.platform == "linux":
        try:
            return _FileTimer(call)
        except (OSError, AttributeError, NotImplementedError):  # a C library or an event loop without it
            pass
    return _LoopTimer(call)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _ITimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _FileTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._descriptor, self._fired)

    def set(self, moment: float) -> None:
        # A moment of 0 would disarm it; one that has passed fires at once.
        seconds, nanoseconds = divmod(max(int(moment * NANOSECONDS), 1), NANOSECONDS)
        spec = _ITimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        if self._libc.timerfd_settime(self._descriptor, TFD_TIMER_ABSTIME, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _fired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        self._call()


class _LoopTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, moment: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(moment - time.monotonic(), 0.0), self._call)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
