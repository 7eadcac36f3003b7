"""``CallReader``: one call, from the text that opens it to the text that closes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.text.formats.dialect import dialect_of
from headrace.text.formats.notation import Calls
from headrace.text.formats.pairs import Pairs
from headrace.text.formats.parts import Arguments, Fixed, Identifier, Kinds, Part, Record
from headrace.text.formats.pattern import Piece
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.values import ValueReader, Verdict

Tools = Mapping[str, Kinds]
"""The tools that may be called, and what their arguments may be."""


@dataclass(slots=True)
class _Attempt:
    """A call as one of the patterns has it.

    Attributes:
        pieces: The pattern.
        parts: A reader of each piece; what comes after a tool's name is made once that is known.
        optional_from: Parts from here on may be missing: what they close is closed already.
        at: Where to go on.
        verdict: What became of it.
    """

    pieces: tuple[Piece, ...]
    parts: list[Part] = field(default_factory=list)
    optional_from: int = 0
    at: int = 0
    verdict: Verdict = Verdict.MORE


class CallReader:
    """Reads one call.

    Args:
        calls: How calls are written.
        opening: What stands before the first piece of a pattern, where something does.
        tools: The tools that may be called; None: any.
        at: Where it begins in the text.

    Attributes:
        call: It, once it is read.
    """

    def __init__(self, calls: Calls, opening: str, tools: Tools | None, at: int) -> None:
        self._calls, self._tools = calls, tools
        self._attempts = [self._attempt(pattern, opening, at) for pattern in calls.patterns]
        self.call: ToolCall | None = None

    def read(self, text: str, *, final: bool) -> tuple[Verdict, int]:
        """Go on with the call.

        Args:
            text: All text; it only grows between calls.
            final: No more text will come, and the message has not been cut short: what closes a call may be missing.

        Returns:
            What became of it; and where it ends, or the first word that does not fit.
        """
        for attempt in self._attempts:
            if attempt.verdict is Verdict.MORE:
                self._go_on(attempt, text, final)
            if attempt.verdict is Verdict.MORE:
                return Verdict.MORE, attempt.at  # a later pattern counts only if the earlier ones do not fit
            if attempt.verdict is Verdict.DONE:
                self.call = self._call_of(attempt)
                # Where nothing marks a call, an object is one only if it names a tool.
                is_call = self.call is not None and self._is_call(self.call)
                return (Verdict.DONE if is_call else Verdict.FAIL), attempt.at
        return Verdict.FAIL, max(attempt.at for attempt in self._attempts)

    def _is_call(self, call: ToolCall) -> bool:
        return not self._calls.at_start or self._tools is None or call.name in self._tools

    def _attempt(self, pattern: tuple[Piece, ...], opening: str, at: int) -> _Attempt:
        pieces = (Piece(text=opening), *pattern) if opening else pattern
        last = pieces[-1]
        if not last.is_field:  # white space behind a call is nobody's
            pieces = (*pieces[:-1], Piece(text=last.text.rstrip()))
        return _Attempt(pieces, at=at)

    def _go_on(self, attempt: _Attempt, text: str, final: bool) -> None:
        while True:
            index = len(attempt.parts) - 1
            if index >= 0:
                part = attempt.parts[index]
                verdict, at = part.read(text, attempt.at, final=final)
                if verdict is Verdict.FAIL and isinstance(part, Fixed) and 0 < attempt.optional_from <= index:
                    verdict, attempt.pieces = Verdict.DONE, attempt.pieces[: index + 1]
                attempt.at = at
                if verdict is not Verdict.DONE:
                    attempt.verdict = verdict
                    return
            if index + 1 == len(attempt.pieces):
                attempt.verdict = Verdict.DONE
                return
            attempt.parts.append(self._part(attempt, attempt.pieces[index + 1]))

    def _part(self, attempt: _Attempt, piece: Piece) -> Part:
        arguments = self._calls.arguments
        if not piece.is_field:
            return Fixed.of(piece.text)
        if piece.name not in ("record", "arguments"):
            return Identifier()
        index = len(attempt.parts)
        dialect = dialect_of(arguments)
        if piece.name == "record":
            attempt.optional_from = index + 1
            return Record(self._calls.records, ValueReader(dialect))
        if arguments.syntax == "pairs":
            attempt.optional_from = index + 2
            call = self._call_of(attempt)
            kinds = (self._tools or {}).get("" if call is None else call.name, {})
            return Pairs(self._calls.pair, dialect, kinds)
        members = arguments.syntax == "python"
        attempt.optional_from = index + (2 if members else 1)
        return Arguments(ValueReader(dialect, members=members))

    def _call_of(self, attempt: _Attempt) -> ToolCall | None:
        """The call, as far as it was read; None if it has no name."""
        found: dict[str, str] = {}
        for piece, part in zip(attempt.pieces, attempt.parts, strict=False):
            if isinstance(part, Identifier):
                found[piece.name] = part.value
            elif isinstance(part, Record):
                found |= part.found
            elif isinstance(part, Arguments | Pairs):
                found["arguments"] = part.written
        if "name" not in found and "id" in found:
            found["name"] = name_in(self._calls.id, found["id"])
        name = found.get("name")
        return ToolCall(name, found.get("arguments", "{}"), found.get("id")) if name else None


def name_in(form: str, identifier: str) -> str:
    """The tool's name in an id such as ``functions.f:0``; models are not strict about what stands around it.

    Args:
        form: What ids look like, with ``$name`` and ``$index``.
        identifier: The id.
    """
    before, _, after = form.partition("$name")
    numbered = identifier.rstrip("0123456789") if "$index" in after else identifier
    after = after.replace("$index", "")
    name = numbered.removesuffix(after) if numbered.endswith(after) else identifier
    return name.removeprefix(before)
