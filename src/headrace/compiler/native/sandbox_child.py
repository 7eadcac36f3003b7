"""The process in which candidates run. Started by ``sandbox.py`` as a script, without any package.

    sandbox_child.py SOCKET POOL HARNESS THREADS POISON

It reads one JSON object a line from the socket and answers one to each. A request that brings memory has the file
descriptors with it. Whatever a candidate does to this process, the parent sees it by the socket or by the clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE = 1, 2, 1, 2  # the same on Linux and macOS
MAP_ANONYMOUS = 0x20 if sys.platform == "linux" else 0x1000
MADV_HUGEPAGE = 14  # Linux
HUGE = 2 << 20
FAILED = ctypes.c_void_p(-1).value

Message = dict[str, Any]


class Child:
    """What the child holds: the pool, and memory that is shared with the parent."""

    def __init__(self, pool: str, harness: str, threads: int, poison: bool) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        pools = ctypes.CDLL(pool)
        pools.hr_pool_open.restype = ctypes.c_void_p
        pools.hr_pool_open.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self.pool = pools.hr_pool_open(threads, None, 20_000, 100_000)
        if not self.pool:
            raise OSError(f"no {threads} threads are to be had")
        self.time = ctypes.CDLL(harness).hr_time
        self.time.restype = None
        self.poison = poison
        self.cases: dict[int, tuple[Any, Any, list[tuple[int, int]]]] = {}
        self.bases: dict[int, tuple[int, int]] = {}
        self.sweep: Any = None

    def share(self, message: Message, files: list[int]) -> Message:
        """Get the memory of a case: what is only read cannot be written here either."""
        regions = [self.copied(files[0], message["bytes"][0]), self.mapped(files[1], message["bytes"][1])]
        for file in files:
            os.close(file)
        addresses = [regions[region][0] + offset for region, offset in message["buffers"]]
        if self.poison:
            for region, begin, end in message["guards"]:
                self.mark("__asan_poison_memory_region", regions[region][0] + begin, end - begin)
        sizes = message["sizes"]
        buffers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self.cases[message["case"]] = buffers, (ctypes.c_int64 * max(1, len(sizes)))(*sizes), regions
        return {}

    def mapped(self, file: int, size: int, access: int = PROT_READ | PROT_WRITE) -> tuple[int, int]:
        """Address and size of a mapping; -1 for a file: memory without one."""
        kind = MAP_PRIVATE | MAP_ANONYMOUS if file < 0 else MAP_SHARED
        address = self.libc.mmap(None, size, access, kind, file, 0)
        if address == FAILED:
            raise OSError(ctypes.get_errno(), "no memory for the buffers of a case")
        return address, size

    def copied(self, file: int, size: int) -> tuple[int, int]:
        """What is read, copied to huge pages, as an executor keeps its weights: shared memory has small ones, and is
        read a third more slowly."""
        source, _ = self.mapped(file, size, PROT_READ)
        base, room = self.mapped(-1, size + 2 * HUGE)
        begin = (base + HUGE - 1) // HUGE * HUGE
        if sys.platform == "linux":
            self.libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(room - HUGE), MADV_HUGEPAGE)
        ctypes.memmove(begin, source, size)
        self.libc.munmap(source, size)
        self.libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(room - HUGE), PROT_READ)
        self.bases[begin] = base, room
        return begin, size

    def mark(self, what: str, address: int, size: int) -> None:
        """Tell the address sanitizer about memory."""
        getattr(self.libc, what)(ctypes.c_void_p(address), ctypes.c_size_t(size))

    def forget(self, message: Message, files: list[int]) -> Message:
        """Unmap a case."""
        *_, regions = self.cases.pop(message["case"], (None, None, []))
        for address, size in regions:
            if self.poison:
                self.mark("__asan_unpoison_memory_region", address, size)
            self.libc.munmap(*self.bases.pop(address, (address, size)))
        return {}

    def run(self, message: Message, files: list[int]) -> Message:
        """Run a candidate; what each run took, in nanoseconds."""
        buffers, sizes, _ = self.cases[message["case"]]
        runs = message["runs"]
        taken = (ctypes.c_int64 * runs)()
        if message["sweep"] and (self.sweep is None or len(self.sweep) < message["sweep"]):
            self.sweep = ctypes.create_string_buffer(b"\1" * message["sweep"], message["sweep"])
        sweep = self.sweep if message["sweep"] else None
        # Nobody but the parent looks at the clock; should it be gone, this ends an endless loop.
        signal.setitimer(signal.ITIMER_REAL, message["seconds"] * 2 + 5)
        limit_memory(message["memory"])
        try:
            kernel = getattr(ctypes.CDLL(message["library"]), message["symbol"])
            pool, room = ctypes.c_void_p(self.pool), ctypes.c_int64(message["sweep"])
            self.time(kernel, pool, buffers, sizes, ctypes.c_int64(runs), sweep, room, taken)
        finally:
            limit_memory(0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return {"ns": list(taken)}


def limit_memory(extra: int) -> None:
    """Let the address space grow by so many bytes and no more; 0: as it likes."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if extra:
        try:
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
        except OSError:
            return
        extra = used + extra if hard == resource.RLIM_INFINITY else min(used + extra, hard)
    resource.setrlimit(resource.RLIMIT_AS, (extra or hard, hard))


def serve(channel: socket.socket, child: Child) -> None:
    """Answer requests until the parent hangs up."""
    pending = b""
    files: list[int] = []
    while True:
        while b"\n" not in pending:
            part, more, _, _ = socket.recv_fds(channel, 1 << 16, 4)
            if not part:
                return
            pending += part
            files += more
        line, _, pending = pending.partition(b"\n")
        message = json.loads(line)
        taken, files = (files[:2], files[2:]) if message["do"] == "share" else ([], files)
        try:
            answer = getattr(child, message["do"])(message, taken)
        except (OSError, AttributeError, MemoryError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        channel.sendall(json.dumps({"id": message["id"], **answer}).encode() + b"\n")


def main() -> None:
    """Set up, say so, and serve."""
    number, pool, harness, threads, poison = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))  # of noise on standard error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's affair
    with socket.socket(fileno=int(number)) as channel:
        child = Child(pool, harness, int(threads), poison == "poison")
        channel.sendall(b'{"id": 0}\n')
        serve(channel, child)


if __name__ == "__main__":
    main()
