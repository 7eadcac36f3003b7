"""Writing grammars in llguidance's form of Lark: texts, texts that do not hold others, and rules by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TO_ESCAPE = re.compile(r"[\\^$.|?*+(){}\[\]/\n\r\t]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
ANY_TEXT = "/(?s:.*)/"
# What a grammar leaves no choice about is for the engine to find out from masks: the library would tokenize it anew.
NO_FORCING = '%llguidance {"no_forcing": true}'
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
    return json.dumps(text, ensure_ascii=False) if text else ""


@dataclass(slots=True)
class GrammarWriter:
    """A grammar in the making.

    Attributes:
        specials: Ids of the vocabulary's control tokens by their texts: no text of the grammar is spelled with them
            unless they are named.
        rules: What has been written.
    """

    specials: Mapping[str, int]
    rules: list[str] = field(default_factory=list)
    _known: dict[str, str] = field(default_factory=dict)

    def literal(self, text: str) -> str:
        """A fixed text, its control tokens named; ``""`` for an empty one."""
        parts = [f"<[{self.specials[part]}]>" if part in self.specials else quoted(part) for part in self._split(text)]
        return " ".join(part for part in parts if part) or '""'

    def begins_special(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        return any(text.startswith(special) for special in self.specials)

    def is_spelled(self, text: str) -> bool:
        """Whether a text holds no control token."""
        return self._split(text) == [text]

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._named(body, "r")

    def terminal(self, body: str) -> str:
        """The name of a terminal with this body: what the lexer takes as one word."""
        return self._named(body, "T")

    def source(self, start: str) -> str:
        """The whole grammar, whose texts are those of the rule ``start``."""
        return "\n".join([NO_FORCING, f"start: {start}", *self.rules]) + "\n"

    def _named(self, body: str, prefix: str) -> str:
        if body not in self._known:
            self._known[body] = f"{prefix}{len(self._known)}"
            self.rules.append(f"{self._known[body]}: {body}")
        return self._known[body]

    def _split(self, text: str) -> list[str]:
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
