"""The records of the tiers: what is stored together, and what goes where."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.memory.page_form import Bytes
from headrace.memory.tiers.keys import DIGEST_BYTES

Offsets = npt.NDArray[np.int64]
TierName = Literal["host", "disk"]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Pages that are stored together, one after the other: group by group, and in a group by place in the prefix.

    Attributes:
        keys: Names of the pages.
        sizes: Bytes of each.
        name: A name of the whole that follows from its keys, so that who stores the same pages writes the same file.
        begins: Where each begins, and where the last ends.
    """

    keys: tuple[bytes, ...]
    sizes: tuple[int, ...]
    name: str = field(init=False)
    begins: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        name = hashlib.blake2b(b"".join(self.keys), digest_size=DIGEST_BYTES).hexdigest()
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "begins", (0, *np.cumsum(self.sizes, dtype=np.int64).tolist()))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.begins[-1]


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring pages of one group in a run, and where their bytes are in the arena.

    Attributes:
        group: Number of the state group.
        first: Place of the first in the run.
        offsets: int64 [pages], byte offsets in the arena.
    """

    group: int
    first: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Leg:
    """What a transfer does with one run.

    Attributes:
        tier: Where the run is.
        run: The run.
        parts: Which of its pages, and where their bytes are in the arena; by place in the run.
    """

    tier: TierName
    run: StoredRun
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that go over."""
        begins = self.run.begins
        return sum(begins[part.first + len(part.offsets)] - begins[part.first] for part in self.parts)


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer that was asked for.

    Attributes:
        kind: Out of the arena, or into it.
        legs: What it does; one a run.
        after: It starts when this batch is collected.
        ok: Whether all went well so far.
        given_up: Nobody waits for it any more, and it touches the arena no more; see ``give_up``.
        lock: Held by whoever touches the arena for it.
        jobs: Threads that are not done with it.
        held: Runs in host memory that are kept for it.
    """

    kind: Literal["store", "load"]
    legs: tuple[Leg, ...]
    after: int
    ok: bool = True
    given_up: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: int = 0
    held: dict[str, Bytes] = field(default_factory=dict)

    def give_up(self) -> None:
        """Have the arena touched no more from now on, whatever a thread is waiting for."""
        with self.lock:
            self.given_up = True

    def touch(self, copy: Callable[[int, Offsets, Bytes], None], group: int, offsets: Offsets, data: Bytes) -> bool:
        """Copy bytes out of the arena or into it, unless the transfer was given up; whether that was done."""
        with self.lock:
            if not self.given_up:
                copy(group, offsets, data)
            return not self.given_up

    def concerns(self, digests: Iterable[bytes]) -> bool:
        """Whether it moves a page of these."""
        wanted = set(digests)
        return any(key[:DIGEST_BYTES] in wanted for leg in self.legs for key in leg.run.keys)

    def nbytes(self, tier: TierName) -> int:
        """Bytes that go over to a tier or from it."""
        return sum(leg.nbytes for leg in self.legs if leg.tier == tier)
