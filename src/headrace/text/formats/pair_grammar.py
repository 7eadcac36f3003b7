"""``PairGrammar``: the grammar of arguments that are written one after the other, strings as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.kinds import BOTH, OTHER, STRING, follow, kinds_of
from headrace.text.formats.lark import ANY_TEXT, GrammarWriter, either, quoted, sequence, without
from headrace.text.formats.notation import Calls
from headrace.text.formats.pairs import Pairs
from headrace.text.formats.tool_schema import (
    OF_TYPE,
    allow_only,
    keywords_of,
    listed_values,
    properties_of,
    string_terminal,
    types_of,
    with_definitions,
)
from headrace.text.schema.numbers import ANY_INTEGER, ANY_NUMBER

_LOOKS_LIKE_JSON = r"/\s*(-?[0-9][0-9.eE+\-]*|true|false|null|True|False|None|[\[{](?s:.*))\s*/"
_SCALARS = {
    "boolean": "true|false",
    "null": "null",
    "integer": ANY_INTEGER,
    "number": ANY_NUMBER,
}
_PYTHON_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


class PairGrammar:
    """Writes the arguments of one tool.

    Args:
        writer: Takes the rules.
        calls: How calls are written.
        schema: JSON Schema of the arguments, of type object.
    """

    def __init__(self, writer: GrammarWriter, calls: Calls, schema: Mapping[str, Any]) -> None:
        self._writer, self._calls = writer, calls
        self._root = schema
        self._dialect: Dialect = dialect_of(calls.arguments)

    def arguments(self) -> str:
        """The rule for the arguments, in the order of the schema; the required ones are there.

        Raises:
            InvalidInput: The schema cannot be enforced in this format; ``field`` is the way to the keyword.
        """
        schema = keywords_of(follow(self._root, self._root), "object", "")
        properties, required = properties_of(schema, "")
        pattern = self._calls.pair
        place = next(i for i, piece in enumerate(pattern) if piece.name == "value")
        after = "".join(piece.text for piece in pattern[place + 1 :])
        before = [piece.text for piece in pattern[:place] if not piece.is_field]
        rules = []
        for name, item in properties.items():
            at = f".properties.{name}"
            self._check(name, "0", frozenset({STRING}), "0", at)
            head = self._writer.literal(name.join(before))
            kinds = kinds_of(item, self._root)
            rule = self._writer.rule(sequence(head, self._pair_value(item, kinds, after, at)))
            rules.append(rule if name in required else f"{rule}?")
        if not properties and schema.get("additionalProperties", True) is not False:
            key = self._writer.terminal(r"/[A-Za-z0-9_\-.]+/")
            value = self._pair_value(schema.get("additionalProperties", True), BOTH, after, ".additionalProperties")
            parts = [self._writer.literal(before[0]), key, *(self._writer.literal(text) for text in before[1:])]
            return f"{self._writer.rule(sequence(*parts, value))}*"
        return sequence(*rules)

    def _pair_value(self, schema: object, read: frozenset[str], after: str, at: str) -> str:
        """A value and what stands after it: a string as it is, anything else as JSON; ``read``: as what it is read."""
        if schema is True or schema == {}:
            return self._raw(ANY_TEXT, after)
        if not isinstance(schema, Mapping):
            raise InvalidInput("allows nothing", field=at)
        schema = follow(schema, self._root)
        kinds = kinds_of(schema, self._root)
        if "anyOf" in schema and kinds != {OTHER}:
            allow_only(schema, {"anyOf"}, at)
            return either(
                *(self._mixed(item, read, after, f"{at}.anyOf[{i}]") for i, item in enumerate(schema["anyOf"]))
            )
        if read == {STRING} and not schema.keys() & {"enum", "const"}:
            return self._raw(string_terminal(keywords_of(schema, "string", at), at), after)
        if kinds == {OTHER}:
            return self._json_pair(schema, after, at)
        return self._mixed(schema, read, after, at)

    def _mixed(self, schema: object, read: frozenset[str], after: str, at: str) -> str:
        """One of the ways to be a string or something else: what looks like JSON is no string then."""
        if not isinstance(schema, Mapping):
            raise InvalidInput("cannot be enforced in this model's format", field=at)
        schema = follow(schema, self._root)
        kinds = kinds_of(schema, self._root)
        rules = []
        if "enum" in schema or "const" in schema:
            plain = [(self._dialect.bare(v), v) for v in listed_values(schema, at)]
            for text, value in plain:
                self._check("x", text, read, value, at)
            return either(*(self._writer.literal(text + after) for text, _ in plain))
        if STRING in kinds:
            body = string_terminal(keywords_of({**schema, "type": "string"}, "string", at), at)
            rules.append(self._raw(f"({body}) & ~{_LOOKS_LIKE_JSON}" if OTHER in read else body, after))
        if OTHER in kinds:
            rules += [self._other(schema, one, after, at) for one in types_of(schema) if one != "string"]
        return either(*rules)

    def _other(self, schema: Mapping[str, Any], kind: str, after: str, at: str) -> str:
        """A value that is no string, where a string could stand too: one word for the lexer, as that would be."""
        if kind not in _SCALARS:
            return self._json_pair({**schema, "type": kind}, after, at)
        if kind != "null" and schema.keys() & OF_TYPE["number"]:
            raise InvalidInput("cannot be enforced beside strings in this model's format", field=at)
        words = _PYTHON_WORDS.get(kind, ()) if self._dialect.words == "python" else ()
        spelled = "|".join([_SCALARS[kind], *words])
        if not self._writer.is_spelled(after):
            return sequence(self._writer.terminal(f"/{spelled}/"), self._writer.literal(after))
        return self._writer.terminal(f"/({spelled})/ {quoted(after)}")

    def _json_pair(self, schema: Mapping[str, Any], after: str, at: str) -> str:
        """JSON, or true, false and null as the format spells them."""
        rule = self._writer.json(with_definitions(schema, self._root), at)
        if self._dialect.words == "python" and "type" in schema and not schema.keys() & {"enum", "const"}:
            words = [word for kind in types_of(schema) for word in _PYTHON_WORDS.get(kind, ())]
            rule = either(rule, *(quoted(word) for word in words))
        return sequence(rule, self._writer.literal(after))

    def _raw(self, body: str, after: str) -> str:
        """A text of this form that is ended by ``after``, and does not hold what ends it for a reader."""
        closing = after.strip() or after
        if self._writer.is_spelled(after):
            return self._writer.terminal(f"({without([closing.split()[0]], body)}) {quoted(after)}")
        return sequence(f"{self._writer.terminal(body)}?", self._writer.literal(after))

    def _check(self, key: str, text: str, read: frozenset[str], value: object, at: str) -> None:
        """Refuse an argument that is read as another one, or holds what is the format's own."""
        fields = {"key": key, "value": text}
        written = "".join(fields[piece.name] if piece.is_field else piece.text for piece in self._calls.pair)
        pairs = Pairs(self._calls.pair, self._dialect, {key: read})
        pairs.read(written, 0, final=True)
        is_spelled = self._writer.is_spelled(key) and self._writer.is_spelled(text)
        if not is_spelled or pairs.written != json.dumps({key: value}, ensure_ascii=False):
            raise InvalidInput("cannot be written in this model's format", field=at)
