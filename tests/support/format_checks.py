"""What must hold of every message that is read, whatever its text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from functools import cache

from headrace.text.formats.call_reader import CallReader, Tools
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import MessagePiece, Text, Thought, ToolCall, joined
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.values import Verdict


def read(
    found: Format, parts: Iterable[str], *, cut: bool = False, tools: Tools | None = None, primed: str = ""
) -> list[MessagePiece]:
    """What a message that arrives in these parts consists of; without ``tools`` any may be called."""
    reader = FormatReader(found, tools, primed, any_tool=tools is None)
    pieces = [piece for part in parts for piece in reader.push(part)]
    return joined(pieces + reader.finish(cut=cut))


def two_way(text: str) -> Iterable[tuple[str, str]]:
    """Every way to cut a text in two."""
    return ((text[:at], text[at:]) for at in range(1, len(text)))


def many_way(text: str, rng: random.Random) -> list[str]:
    """A text, cut at random."""
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check_message(
    found: Format, text: str, rng: random.Random, *, cut: bool = False, short: int = 60, ways: int = 2
) -> list[MessagePiece]:
    """Read a text whole and in pieces, and check what comes out; returns it.

    Args:
        found: The format.
        text: The message.
        rng: Chooses the cuts.
        cut: The message was cut short.
        short: Up to so many characters, every cut in two is tried.
        ways: How many random cuts are tried.
    """
    whole = read(found, [text], cut=cut)
    for parts in [list(text), *(many_way(text, rng) for _ in range(ways))]:
        assert read(found, parts, cut=cut) == whole, parts
    if len(text) <= short:
        for pair in two_way(text):
            assert read(found, pair, cut=cut) == whole, pair
    check_arguments(whole)
    check_nothing_lost(found, text, whole)
    return whole


def check_arguments(pieces: Sequence[MessagePiece]) -> None:
    """The arguments of every call are strict JSON, an object."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for piece in pieces:
        if isinstance(piece, ToolCall):
            assert isinstance(json.loads(piece.arguments, parse_constant=refuse), dict)
            piece.arguments.encode()
            assert piece.name


def check_nothing_lost(found: Format, text: str, pieces: Sequence[MessagePiece]) -> None:
    """Every character is white space, of a marker, of a call that was returned, or comes out, in this order.

    Walks over all ways to tell so at once: after some of what came out, the places in the text where one may be.
    """
    markers = [*found.markers, *_stripped(found)]

    def skipped(places: set[int]) -> set[int]:
        reached, todo = set(places), list(places)
        while todo:
            at = todo.pop()
            further = [at + 1] if text[at : at + 1].isspace() else []
            further += [at + len(marker) for marker in markers if text.startswith(marker, at)]
            for place in further:
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
        return reached

    @cache
    def call_ends(at: int) -> frozenset[int]:
        """Where a call may end that begins here."""
        assert found.calls is not None
        ends = set()
        before = " [ ".join(found.calls.begin.rsplit("[", 1))  # white space around a bracket is the model's choice
        for opening in ("", before, f" {found.calls.separator.strip()} "):
            reader = CallReader(found.calls, opening, None, at)
            verdict, end = reader.read(text, final=True)
            if verdict is Verdict.DONE:
                ends.add(end)
        return frozenset(ends)

    places = {0}
    for piece in pieces:
        if isinstance(piece, ToolCall):
            places = {end for at in skipped(places) for end in call_ends(at)}
        else:
            assert isinstance(piece, Text | Thought)
            for char in piece.text:
                # White space that is shown must have stood here; what is skipped before it may not be white space only.
                places = {at + 1 for at in skipped(places) if text[at : at + 1] == char}
                if not places:
                    break
        assert places, (piece, pieces, text)
    assert len(text) in skipped(places), (pieces, text)


def _stripped(found: Format) -> list[str]:
    """First lines of markers: what is looked for."""
    return [line.strip() for marker in found.markers for line in marker.split("\n") if line.strip()]
