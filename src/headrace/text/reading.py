"""``Reading``: how the text of one answer is to be taken apart. It travels with a request that stop strings end."""

from __future__ import annotations

import msgspec

from headrace.text.formats.kinds import argument_kinds
from headrace.text.formats.notation import Format
from headrace.text.formats.reader import FormatReader


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reader must know of a request.

    Attributes:
        primed: What of the message stands in the prompt already.
        tools: The tools that may be called, each with what its arguments may be.
    """

    primed: str = ""
    tools: dict[str, dict[str, list[str]]] = {}

    @classmethod
    def of(cls, primed: str, tools: list[tuple[str, object]]) -> Reading:
        """For tools, given by name and JSON Schema of their arguments."""
        known = {name: {arg: sorted(k) for arg, k in argument_kinds(schema).items()} for name, schema in tools}
        return cls(primed, known)

    def reader(self, found: Format) -> FormatReader:
        """A reader of one message in this format."""
        tools = {name: {arg: frozenset(k) for arg, k in kinds.items()} for name, kinds in self.tools.items()}
        return FormatReader(found, tools, self.primed)

    def packed(self) -> str:
        """The form that travels."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def unpacked(cls, packed: str) -> Reading:
        """What ``packed`` gave."""
        return msgspec.json.decode(packed, type=cls)
