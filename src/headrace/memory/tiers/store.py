"""``TierStore``: what the tiers have of a prefix, and the way there and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.memory.commands import IntArray
from headrace.memory.tiers.disk import DiskTier
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.host import HostTier
from headrace.memory.tiers.keys import Identity, object_key, page_digests, root_digest
from headrace.memory.tiers.page_bytes import PageBytes
from headrace.memory.tiers.records import Leg, Part, StoredRun, TierName, Transfer
from headrace.memory.tiers.run_index import Place
from headrace.memory.tiers.transfers import Hands, Transfers
from headrace.memory.tiers.worker import Worker

RUN_PAGES = 64  # most pages of a group in a run: large enough for a disk to read at its full rate
FORMAT = "v1"  # of files; another version has another folder

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TierGroup:
    """A state group as the tiers see it.

    Attributes:
        kind: As in ``CachedGroup``.
        page_bytes: Bytes of a page.
        window: Tokens that a token sees, itself included; 0 if all.
    """

    kind: Literal["full", "window", "state"]
    page_bytes: int
    window: int = 0

    def first_page(self, tokens: int, page_tokens: int) -> int:
        """The first page that the token behind ``tokens`` others sees."""
        return max(0, tokens - self.window + 1) // page_tokens if self.window else 0


@dataclass(frozen=True, slots=True)
class TierLimits:
    """How much the tiers may take.

    Attributes:
        host_bytes: Bytes of host memory. What goes to disk goes through it.
        folder: Where files go; None: there is no disk tier.
        disk_bytes: Bytes of files, those of other models included when it starts.
    """

    host_bytes: int
    folder: Path | None = None
    disk_bytes: int = 0


class Wanted(NamedTuple):
    """A page of a group, by its place in a prefix; of a state, the page after which it stands."""

    group: int
    page: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the tiers can add to a prefix.

    Attributes:
        pages: Pages that the prefix has then.
        sources: Which pages must be loaded, and from where.
        nbytes: Bytes of all.
    """

    pages: int
    sources: dict[Wanted, tuple[TierName, Place]]
    nbytes: int


def own_folder(folder: Path, identity: Identity) -> Path:
    """Where a model's files are, in the folder of all."""
    return folder / f"{FORMAT}-{identity.digest.hex()}"


class TierStore:
    """Host memory and disk behind one arena. For the engine's thread.

    Args:
        groups: The model's state groups.
        page_tokens: Tokens of a page.
        pages: The arena's bytes.
        identity: Whose pages they are.
        limits: How much the tiers may take.
        hands: Makes who does transfers.
        files: The disk tier's folder, given its path.
        wake: Called by other threads when a transfer has ended.
        clock: Seconds.
    """

    def __init__(
        self,
        groups: Sequence[TierGroup],
        page_tokens: int,
        pages: PageBytes,
        identity: Identity,
        limits: TierLimits,
        *,
        hands: Callable[[str], Hands] = Worker,
        files: Callable[[Path], Files] = Files,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.groups, self.page_tokens = tuple(groups), page_tokens
        self._identity = identity
        self.host = HostTier(limits.host_bytes)
        self.disk = None
        if limits.folder is not None:
            self.disk = DiskTier(files(own_folder(limits.folder, identity)), identity.digest, limits.disk_bytes, clock)
        self.transfers = Transfers(pages, self.host, self.disk, hands=hands, wake=wake, clock=clock)
        self._storing: set[bytes] = set()  # pages on their way out

    def chain(self, key: Hashable, tokens: IntArray) -> list[bytes]:
        """The digest of each whole page of a prefix."""
        return page_digests(root_digest(self._identity, key), tokens, self.page_tokens)

    # -- loading

    def lookup(self, digests: Sequence[bytes], from_page: int) -> Found | None:
        """How far a prefix could go on from what the arena has.

        Args:
            digests: Of its pages.
            from_page: Pages that the arena has, with all that is needed to go on behind them.

        Returns:
            What would have to be loaded; None if nothing helps.
        """
        places = [self._find([object_key(d, n) for d in digests[from_page:]]) for n in range(len(self.groups))]
        have = [np.array([place is not None for place in row], np.bool_) for row in places]
        pages = from_page + reach(have, self.groups, from_page, self.page_tokens)
        if pages == from_page:
            return None
        sources = {}
        for n, group in enumerate(self.groups):
            first = pages - 1 if group.kind == "state" else group.first_page(pages * self.page_tokens, self.page_tokens)
            for page in range(max(first, from_page), pages):
                source = places[n][page - from_page]
                assert source is not None  # or ``reach`` would not go so far
                sources[Wanted(n, page)] = source
        return Found(pages, sources, sum(self.groups[wanted.group].page_bytes for wanted in sources))

    def load_seconds(self, found: Found) -> float:
        """Seconds that loading will take."""
        return self.transfers.load_seconds(_legs(found, None))

    def load(self, found: Found, offsets: dict[Wanted, int], after: int) -> Transfer | None:
        """Load pages; None if that cannot be now.

        Args:
            found: What ``lookup`` found.
            offsets: Where in the arena each page shall be.
            after: As in ``Transfers.load``.
        """
        return self.transfers.load(_legs(found, offsets), after)

    def _find(self, keys: list[bytes]) -> list[tuple[TierName, Place] | None]:
        found: list[tuple[TierName, Place] | None] = [
            None if place is None else ("host", place) for place in self.host.find(keys)
        ]
        if self.disk is not None and self.transfers.disk_usable and None in found:
            for n, place in enumerate(self.disk.find(keys)):
                if found[n] is None and place is not None:
                    found[n] = "disk", place
        return found

    # -- storing

    def missing(self, digests: Sequence[bytes], wanted: Sequence[Wanted]) -> list[Wanted]:
        """Those pages that no tier has and that are not on their way."""
        return [x for x in wanted if not self._known(object_key(digests[x.page], x.group))]

    def store(
        self, digests: Sequence[bytes], offsets: dict[Wanted, int], after: int
    ) -> list[tuple[Transfer, list[Wanted]]]:
        """Store pages, together as far as they are near in the prefix.

        Args:
            digests: Of the prefix's pages.
            offsets: Where in the arena each page is.
            after: As in ``Transfers.store``.

        Returns:
            The transfers that will do it, and the pages of each; what is too much now is left out.
        """
        started = []
        for members in _runs(offsets):
            keys = tuple(object_key(digests[x.page], x.group) for x in members)
            run = StoredRun(keys, tuple(self.groups[x.group].page_bytes for x in members))
            parts, first = [], 0
            for group in sorted({x.group for x in members}):
                own = np.array([offsets[x] for x in members if x.group == group], np.int64)
                parts.append(Part(group, first, own))
                first += len(own)
            transfer = self.transfers.store(run, parts, after)
            if transfer is not None:
                self._storing.update(keys)
                started.append((transfer, members))
        return started

    def forget(self, digests: Sequence[bytes]) -> None:
        """Have nothing found that stands for a page of a prefix, nor what was stored with it."""
        keys = [object_key(digest, n) for n in range(len(self.groups)) for digest in digests]
        self.host.forget(keys)
        if self.disk is not None:
            self.transfers.remove(self.disk.forget(keys))

    def finished(self) -> list[Transfer]:
        """Transfers that have ended since the last call."""
        ended = self.transfers.finished()
        for transfer in ended:
            if transfer.kind == "store":
                self._storing.difference_update(transfer.legs[0].run.keys)
        return ended

    def _known(self, key: bytes) -> bool:
        return key in self._storing or self.host.exists(key) or (self.disk is not None and self.disk.exists(key))

    def check(self) -> None:
        """Assert the invariants."""
        self.host.check()
        if self.disk is not None:
            self.disk.check()


def reach(have: Sequence[Flags], groups: Sequence[TierGroup], from_page: int, page_tokens: int) -> int:
    """How many pages a prefix can go on by, so that all groups can go on behind it.

    Args:
        have: bool [pages] of each group: the page is there; of a state, the one that stands after the page.
        groups: The groups.
        from_page: Pages of the prefix already there.
        page_tokens: Tokens of a page.
    """
    total = len(have[0]) if have else 0
    for row, group in zip(have, groups, strict=True):
        if group.kind == "full":
            total = min(total, int(np.argmin(row)) if not row.all() else len(row))
    for pages in range(total, 0, -1):
        if all(_serves(row, group, pages, from_page, page_tokens) for row, group in zip(have, groups, strict=True)):
            return pages
    return 0


def _serves(have: Flags, group: TierGroup, pages: int, from_page: int, page_tokens: int) -> bool:
    if group.kind == "state":
        return bool(have[pages - 1])
    if group.kind == "window":
        first = group.first_page((from_page + pages) * page_tokens, page_tokens)
        return bool(have[max(0, first - from_page) : pages].all())
    return True


def _runs(pages: dict[Wanted, int]) -> Iterator[list[Wanted]]:
    """Pages in stretches of a prefix, each group by group."""
    by_page = sorted(pages, key=lambda x: x.page)
    while by_page:
        end = by_page[0].page + RUN_PAGES
        yield sorted((x for x in by_page if x.page < end), key=lambda x: (x.group, x.page))
        by_page = [x for x in by_page if x.page >= end]


def _legs(found: Found, offsets: dict[Wanted, int] | None) -> list[Leg]:
    """One a run; without offsets, for its size alone."""
    by_run: dict[tuple[TierName, str], list[tuple[int, Wanted]]] = {}
    runs: dict[str, StoredRun] = {}
    for wanted, (tier, (run, number)) in found.sources.items():
        by_run.setdefault((tier, run.name), []).append((number, wanted))
        runs[run.name] = run
    legs = []
    for (tier, name), members in by_run.items():
        members.sort(key=lambda member: member[0])
        numbers = np.array([number for number, _ in members])
        groups = np.array([wanted.group for _, wanted in members])
        places = np.array([0 if offsets is None else offsets[wanted] for _, wanted in members], np.int64)
        cuts = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(groups) != 0)) + 1
        parts = tuple(
            Part(int(groups[chunk[0]]), int(numbers[chunk[0]]), places[chunk])
            for chunk in np.split(np.arange(len(members)), cuts)
        )
        legs.append(Leg(tier, runs[name], parts))
    return legs
