"""``message_grammar``: the grammar that holds a model to its own format, from the same data that it is read by.

Text and calls follow each other freely where calls may be made, and nothing but calls comes where they must be. A
marker that is a control token ends a text by itself; one that is spelled belongs to the lexer's word for the text
before it, since that lexer takes the longest word and does not go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.text.formats.call_grammar import CallableTool, CallGrammar
from headrace.text.formats.lark import (
    ANY_TEXT,
    SOME_TEXT,
    GrammarWriter,
    either,
    nested,
    quoted,
    sequence,
    text_pattern,
    without,
)
from headrace.text.formats.notation import Format, Reasoning
from headrace.text.schema import Spacing

CallMode = Literal["none", "may", "must"]
SOME_SPACE = "/[ \\n]{1,2}/"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a message may consist of.

    Attributes:
        tools: That may be called.
        calls: Whether they need not, may or must be called.
        parallel: Whether several calls may be made.
        answer: The grammar of the answer; None: any text.
    """

    tools: tuple[CallableTool, ...] = ()
    calls: CallMode = "none"
    parallel: bool = True
    answer: str | None = None


def message_grammar(
    found: Format,
    form: MessageForm,
    *,
    primed: str = "",
    specials: Mapping[str, int] | None = None,
) -> str:
    """A grammar in llguidance's form of Lark.

    Args:
        found: How the model writes.
        form: What it may write.
        primed: What of the message stands in the prompt already.
        specials: Control tokens of the vocabulary, by their texts.

    Raises:
        InvalidInput: A tool's schema cannot be enforced; ``field`` is ``tools[i]`` and the way to the keyword.
    """
    return _MessageGrammar(found, form, primed, specials or {}).source()


class _MessageGrammar:
    def __init__(self, found: Format, form: MessageForm, primed: str, specials: Mapping[str, int]) -> None:
        self._format, self._form = found, form
        markers = {text: token for text, token in specials.items() if any(text in marker for marker in found.markers)}
        spaced = found.calls is None or found.calls.arguments.spaced
        self._writer = GrammarWriter(markers, Spacing.COMPACT if spaced else Spacing.TIGHT)
        self._calls = (
            None
            if found.calls is None
            else CallGrammar(self._writer, found.calls, form.tools, parallel=form.parallel, primed=primed)
        )
        self._thinking = found.reasoning is not None and primed.strip() == found.reasoning.open.strip()

    def source(self) -> str:
        """The grammar."""
        form = self._form
        before = self._thought_end(self._format.reasoning) if self._thinking and self._format.reasoning else ""
        free = form.calls != "must" and form.answer is None
        return self._writer.source(sequence(before, self._free() if free else self._bound()))

    def _bound(self) -> str:
        """Perhaps reasoning, then calls or an answer of a given form."""
        reasoning = self._format.reasoning
        rest = self._calls_or_answer(begun=False)
        if reasoning is None or self._thinking:
            return sequence(self._gap(), rest)
        thought = sequence(self._writer.literal(reasoning.open.rstrip()), self._thought_end(reasoning), self._gap())
        return either(self._calls_or_answer(begun=True), sequence(self._writer.rule(thought), rest))

    def _calls_or_answer(self, *, begun: bool) -> str:
        choices = []
        if self._form.calls != "none" and self._calls is not None:
            choices.append(self._calls.begun_section() if begun else self._calls.section())
        if self._form.calls != "must":
            choices.append(self._answer())
        return either(*choices)

    # --- a message of free text and calls -----------------------------------------------------------------------

    def _free(self) -> str:
        """Text, reasoning and calls, in any order; after calls that may not be followed by others, the end."""
        writer, calls = self._writer, self._calls
        if calls is None:
            return writer.terminal(ANY_TEXT)
        may_call = self._form.calls != "none"
        if self._format.calls is not None and self._format.calls.at_start:
            text = writer.terminal(calls.not_a_call())
            return either(calls.section(), text) if may_call else text
        entries = self._entries(calls)
        body = self._text_body(calls, [marker for marker, _, _ in entries])
        text = writer.terminal(body.replace(ANY_TEXT, SOME_TEXT, 1))
        again = [self._entered(text, body, marker, rest) for marker, rest, repeats in entries if repeats]
        last = [self._entered(text, body, marker, rest) for marker, rest, repeats in entries if not repeats]
        # A text never follows a text, or one could be read in many ways.
        loop = f"({writer.rule(either(*again))})*" if again else ""
        whole = sequence(loop, writer.rule(either(f"{text}?", *last)))
        if not may_call or not calls.begun_openings():
            return whole
        return either(sequence(calls.begun_section(begun_only=True), whole if self._form.parallel else ""), whole)

    def _text_body(self, calls: CallGrammar, markers: list[str]) -> str:
        """A terminal's body for text: without what begins something else."""
        openings = dict.fromkeys([*markers, *calls.openings()])
        body = without(opening for opening in openings if self._writer.is_spelled(opening))
        begun = "|".join(map(text_pattern, calls.begun_openings()))
        return f"{body} & ~/({begun})(?s:.*)/" if begun else body

    def _entries(self, calls: CallGrammar) -> list[tuple[str, str, bool]]:
        """What interrupts a text: the marker, what comes after it, and whether text may follow that."""
        found, entries = self._format, []
        if found.reasoning is not None:
            entries.append((found.reasoning.open.rstrip(), self._thought_end(found.reasoning), True))
        entries += [(marker, "", True) for marker in found.answer.markers if self._writer.begins_special(marker)]
        if self._form.calls != "none":
            entries += [(opening, rest, self._form.parallel) for opening, rest in calls.sections()]
        return entries

    def _entered(self, text: str, body: str, marker: str, rest: str) -> str:
        """Perhaps text, then a marker and what comes after it."""
        if self._writer.begins_special(marker):
            return sequence(f"{text}?", self._writer.literal(marker), rest)
        first = self._writer.split(marker)[0]
        before = self._writer.terminal(f"({body}) {quoted(first)}")
        return sequence(before, self._writer.literal(marker[len(first) :]), rest)

    # --- reasoning and answer -----------------------------------------------------------------------------------

    def _thought_end(self, reasoning: Reasoning) -> str:
        """Reasoning that has been opened, up to what closes it, and white space where what comes next is not text."""
        writer, close = self._writer, reasoning.close.strip()
        free = self._form.calls != "must" and self._form.answer is None
        space = "" if free else f"{writer.terminal(SOME_SPACE)}?"
        if writer.begins_special(close):
            return sequence(f"{writer.terminal(SOME_TEXT)}?", writer.literal(close), space)
        return sequence(writer.terminal(f"({without([close])}) {quoted(close)}"), space)

    def _gap(self) -> str:
        """Markers that may stand between reasoning and what comes next: those that calls begin with, too."""
        openings = [pattern[0].text for pattern in (self._format.calls.patterns if self._format.calls else ())]
        gaps = [m for m in self._format.answer.markers if any(text.startswith(m) and text != m for text in openings)]
        return f"({either(*(self._writer.literal(marker) for marker in gaps))})?" if gaps else ""

    def _answer(self) -> str:
        answer = self._format.answer
        body = self._writer.terminal(ANY_TEXT) if self._form.answer is None else nested(self._form.answer)
        return sequence(self._writer.literal(answer.open), self._writer.rule(body), self._writer.literal(answer.close))
