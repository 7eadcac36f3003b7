"""Stand-ins for threads, clocks, disks and arenas of the tiers: each does what a test says, when it says so."""

import contextlib
import errno

from headrace.memory.tiers.files import PART, FileEntry
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.worker import MOST_JOBS


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class ManualHands:
    """A worker whose jobs are done when somebody calls ``work``."""

    def __init__(self, name="hands"):
        self.name, self.jobs, self.urgent, self.hangs = name, [], [], False

    def submit(self, job, *, urgent=False):
        jobs = self.urgent if urgent else self.jobs
        if len(jobs) >= MOST_JOBS:
            return False
        jobs.append(job)
        return True

    def work(self):
        """Do one job; whether there was one."""
        jobs = self.urgent or self.jobs
        if jobs and not self.hangs:
            jobs.pop(0)()
            return True
        return False

    @property
    def idle(self):
        return not self.jobs and not self.urgent

    def drain(self, seconds):
        while self.work():
            pass
        return self.idle

    close = drain


class Crew:
    """Makes such workers, and has them all."""

    def __init__(self):
        self.hands = {}

    def __call__(self, name):
        self.hands[name] = ManualHands(name)
        return self.hands[name]

    def work(self, rng=None):
        """Have one of them do a job, drawn by ``rng``, else the first that has one."""
        names = list(self.hands)
        if rng is not None:
            rng.shuffle(names)
        return any(self.hands[name].work() for name in names)

    def finish(self):
        for hand in self.hands.values():
            hand.hangs = False
        while self.work():
            pass


class FakeFile:
    def __init__(self, files, name):
        self.files, self.name = files, name

    @property
    def nbytes(self):
        return len(self.files.stored[self.name][0])

    def forget(self):
        pass

    def read(self, begin, out):
        self.files.trouble("read")
        data = self.files.stored[self.name][0][begin : begin + len(out)]
        out[: len(data)] = memoryview(data)
        return len(data) == len(out)


class FakeFiles:
    """A folder in memory. ``broken`` holds what fails: ``read``, ``write``, ``list``, ``remove``, ``touch``.

    Args:
        stored: Its files: name to contents and time of use; may be shared by several.
        clock: Gives times.
    """

    def __init__(self, stored=None, clock=None):
        self.stored = {} if stored is None else stored
        self.clock = clock or Clock()
        self.broken = {}
        self.folder = "memory"

    def trouble(self, what):
        if what in self.broken:
            raise OSError(self.broken[what], "it is broken")

    def entries(self):
        self.trouble("list")
        return [FileEntry(name, len(data), used) for name, (data, used) in self.stored.items()]

    @contextlib.contextmanager
    def open(self, name):
        if name not in self.stored:
            raise FileNotFoundError(errno.ENOENT, "it is not there")
        yield FakeFile(self, name)

    def write(self, name, parts):
        data = b"".join(bytes(part) for part in parts)
        if "write" in self.broken:
            self.stored[name + PART] = (bytearray(data[: len(data) // 2]), self.clock())
            self.trouble("write")
        self.stored[name] = (bytearray(data), self.clock())

    def remove(self, name):
        self.trouble("remove")
        self.stored.pop(name, None)

    def touch(self, name):
        self.trouble("touch")
        if name not in self.stored:
            raise FileNotFoundError(errno.ENOENT, "it is not there")
        self.stored[name] = (self.stored[name][0], self.clock())


class FaultyPages(ArenaBytes):
    """An arena whose bytes cannot be reached while ``broken``."""

    broken = False

    def read(self, group, offsets, out):
        if self.broken:
            raise RuntimeError("no access to the arena")
        super().read(group, offsets, out)

    def write(self, group, offsets, source):
        if self.broken:
            raise RuntimeError("no access to the arena")
        super().write(group, offsets, source)
