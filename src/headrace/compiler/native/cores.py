"""Which processors this process may use, and how many threads make sense."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from headrace.compiler.native.cpu import parse_cpu_list


def usable_cpus() -> tuple[int, ...]:
    """The logical processors that the system lets this process run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def one_a_core(cpus: Iterable[int], topology: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """Of logical processors that share a core, the first; all where the system does not tell."""
    chosen: list[int] = []
    taken: set[int] = set()
    for cpu in cpus:
        if cpu not in taken:
            chosen.append(cpu)
            taken.update(parse_cpu_list(_read(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list")))
            taken.add(cpu)
    return tuple(chosen)


def cpu_quota(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many processors' time the control group allows, as in a container; None: no limit, or nobody tells.

    Threads beyond it make all of them wait, at the end of each period, for the next one.
    """
    limits = []
    for line in _read(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        own = mount / path.strip("/") if not controllers else mount / "cpu" / path.strip("/")
        if not controllers or "cpu" in controllers.split(","):
            # Inside a container the path may be that of the host; the limit is then at the mount itself.
            for folder in (own, *own.parents):
                limits.append(_quota(folder))
                if folder == mount:
                    break
    return min((limit for limit in limits if limit is not None), default=None)


def default_threads() -> int:
    """One a core that this process may use, as far as its quota goes."""
    cores = len(one_a_core(usable_cpus()))
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota + 0.5)))


def _quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us"),
        _read(folder / "cpu.cfs_period_us"),
    ]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max 100000": no limit
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
