"""Writing grammars in llguidance's form of Lark: texts, texts that do not hold others, and rules by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.text.grammar.engine import control_line
from headrace.text.schema import Spacing, schema_rules
from headrace.text.schema.notation import literal

_TO_ESCAPE = re.compile(r"[\\^$.|?*+(){}\[\]/\n\r\t]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
ANY_TEXT = "/(?s:.*)/"
# What a grammar leaves no choice about is for the engine to find out from masks: the library would tokenize it anew.
NO_FORCING = '%llguidance {"no_forcing": true}'
END = -1
SOME_TEXT = "/(?s:.+)/"


def text_pattern(text: str) -> str:
    """A regular expression that matches just this text, for use between slashes."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPES.get(found[0], "\\" + found[0]), text)


def without(texts: Iterable[str], body: str = ANY_TEXT) -> str:
    """A terminal for texts that match ``body`` and hold none of these."""
    held = "|".join(text_pattern(text) for text in texts)
    return f"{body} & ~/(?s:.*)({held})(?s:.*)/" if held else body


def quoted(text: str) -> str:
    """A text as a literal of the grammar; empty for an empty one."""
    return literal(text) if text else ""


def nested(source: str) -> str:
    """A rule for the texts of another grammar."""
    return f"%lark {{\n{source.replace(NO_FORCING, '')}\n}}"


@dataclass(slots=True)
class GrammarWriter:
    """A grammar in the making.

    Attributes:
        specials: Ids of the vocabulary's control tokens by their texts: no text of the grammar is spelled with them
            unless they are named. ``END`` for one that ends a text: the library has it wherever a text may end.
        spacing: How JSON is laid out.
        rules: What has been written.
    """

    specials: Mapping[str, int] = field(default_factory=dict)
    spacing: Spacing = Spacing.COMPACT
    rules: list[str] = field(default_factory=list)
    _schemas: dict[str, str] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)

    def literal(self, text: str) -> str:
        """A fixed text, its control tokens named; ``""`` for an empty one."""
        parts = [self._control(part) if part in self.specials else quoted(part) for part in self.split(text)]
        return " ".join(part for part in parts if part) or '""'

    def begins_special(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        return any(text.startswith(special) for special in self.specials)

    def is_spelled(self, text: str) -> bool:
        """Whether a text holds no control token."""
        return self.split(text) == [text]

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._named(body, "r")

    def terminal(self, body: str) -> str:
        """The name of a terminal with this body: what the lexer takes as one word."""
        return self._named(body, "T")

    def json(self, schema: Any, at: str) -> str:
        """The name of a rule for the JSON values of a schema.

        Args:
            schema: JSON Schema.
            at: What errors call it.

        Raises:
            InvalidInput: It cannot be enforced; ``field`` is ``at`` and the way to the keyword.
        """
        key = json.dumps(schema)
        if key not in self._schemas:
            start, rules = schema_rules(schema, field=at, spacing=self.spacing, prefix=f"json{len(self._schemas)}")
            self._schemas[key] = start
            self.rules.append(rules.rstrip("\n"))
        return self._schemas[key]

    def source(self, start: str) -> str:
        """The whole grammar, whose texts are those of the rule ``start``."""
        controls = [token for token in self.specials.values() if token != END]
        return "\n".join([NO_FORCING, control_line(controls), f"start: {start}", *self.rules]) + "\n"

    def _named(self, body: str, prefix: str) -> str:
        if body not in self._known:
            self._known[body] = f"{prefix}{len(self._known)}"
            self.rules.append(f"{self._known[body]}: {body}")
        return self._known[body]

    def _control(self, text: str) -> str:
        token = self.specials[text]
        return "" if token == END else f"<[{token}]>"

    def split(self, text: str) -> list[str]:
        """A text as control tokens and what stands between them."""
        if not self.specials:
            return [text]
        longest_first = sorted(self.specials, key=len, reverse=True)
        return [part for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if part]


def sequence(*parts: str) -> str:
    """Rules one after the other."""
    return " ".join(part for part in parts if part and part != '""') or '""'


def either(*choices: str) -> str:
    """One of several rules."""
    distinct = list(dict.fromkeys(choices))
    return distinct[0] if len(distinct) == 1 else f"({' | '.join(distinct)})"


def repeated(item: str, separator: str, least: int, most: int | None) -> str:
    """A list of so many items, ``separator`` between them."""
    if most == 0:
        return '""'
    more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    some = f"{item} ({sequence(separator, item)}){more}"
    return some if least > 0 else f"({some})?"
