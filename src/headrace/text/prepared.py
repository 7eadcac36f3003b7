"""``Prepared``: a conversation as the engine takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.text.prompt import Prompt
from headrace.text.stream import MessageForm


class Bounds(NamedTuple):
    """What the engine is told of an answer; the fields of ``SamplingParams``.

    Attributes:
        grammar: What it must follow.
        reading: How it is to be taken apart, packed.
    """

    grammar: str | None
    reading: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation as the engine takes it.

    Attributes:
        prompt: Its tokens.
        form: How the answer is to be taken apart; None: it is plain text.
        grammar: What the answer must follow; None: nothing.
        field: What the caller calls that of which the grammar is made.
        is_free: The answer may be any text: the grammar only keeps calls in order, if there are any.
        schemas: Of the tools' arguments.
        relaxed: Tools whose schemas are not enforced, each with the reason.
    """

    prompt: Prompt
    form: MessageForm | None
    grammar: str | None
    field: str
    is_free: bool
    schemas: Mapping[str, Any]
    relaxed: Mapping[str, str]

    @classmethod
    def plain(cls, prompt: Prompt, grammar: str | None, field: str) -> Prepared:
        """A prompt whose answer is plain text."""
        return cls(prompt, None, grammar, field, is_free=False, schemas={}, relaxed={})

    def bounds(self, *, stops: bool, endless: bool) -> Bounds:
        """What the sampling parameters have to say of the answer.

        Args:
            stops: There are stop strings: only to find those the engine reads the answer.
            endless: The parameters say where the answer ends, as a grammar would. One that need not be there yields.
        """
        grammar = None if self.is_free and endless else self.grammar
        return Bounds(grammar, self.form.reading.packed() if self.form is not None and stops else None)

    def unenforced(self, bounds: Bounds) -> dict[str, Any]:
        """The schemas that these bounds do not enforce, by tool."""
        return {name: it for name, it in self.schemas.items() if name in self.relaxed or bounds.grammar is None}
