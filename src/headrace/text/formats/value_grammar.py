"""``ArgumentGrammar``: the grammar of a call's arguments, from a tool's JSON Schema and a way to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.kinds import follow
from headrace.text.formats.lark import GrammarWriter, either, quoted, repeated, sequence, without
from headrace.text.formats.notation import Calls
from headrace.text.formats.pair_grammar import PairGrammar
from headrace.text.formats.tool_schema import (
    allow_only,
    keywords_of,
    listed_values,
    properties_of,
    string_terminal,
    types_of,
)
from headrace.text.formats.values import ValueReader, Verdict
from headrace.text.schema import schema_rules

_DEEPEST = 16


class ArgumentGrammar:
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
        self._known: dict[int, str] = {}

    def arguments(self) -> str:
        """The rule for the arguments.

        Raises:
            InvalidInput: The schema cannot be enforced in this format; ``field`` is the way to the keyword.
        """
        syntax = self._calls.arguments.syntax
        if syntax == "json" and self._dialect.is_json:
            return self._writer.json(self._root, "")
        schema_rules(self._root, field="")  # what is no schema, or asks too much, is refused before it is read here
        if syntax == "pairs":
            return PairGrammar(self._writer, self._calls, self._root).arguments()
        schema = keywords_of(follow(self._root, self._root), "object", "")
        return self._members(schema, self._keyword, "", 0) if syntax == "python" else self._object(schema, "", 0)

    # --- values that are not JSON -------------------------------------------------------------------------------

    def _value(self, schema: object, at: str, depth: int) -> str:
        """The rule for a value of a schema; ``at`` is the way to it."""
        if depth > _DEEPEST:
            raise InvalidInput(f"is nested more than {_DEEPEST} deep, which this model's format cannot hold", field=at)
        if schema is True or schema == {}:
            return self._any(depth)
        if not isinstance(schema, Mapping):
            raise InvalidInput("allows nothing", field=at)
        if id(schema) not in self._known:  # a part of the document is written once, however often it is referred to
            self._known[id(schema)] = self._writer.rule(self._said_of(follow(schema, self._root), at, depth))
        return self._known[id(schema)]

    def _said_of(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        if schema.keys() & {"enum", "const"}:
            return either(*(self._listed(value, at) for value in listed_values(schema, at)))
        if "anyOf" in schema:
            allow_only(schema, {"anyOf"}, at)
            choices = enumerate(schema["anyOf"])
            return either(*(self._value(item, f"{at}.anyOf[{i}]", depth + 1) for i, item in choices))
        return either(*(self._typed(schema, one, at, depth) for one in types_of(schema)))

    def _typed(self, schema: Mapping[str, Any], kind: str, at: str, depth: int) -> str:
        schema = keywords_of(schema, kind, at)
        if kind == "object":
            return self._object(schema, at, depth)
        if kind == "array":
            items = self._value(schema.get("items", True), f"{at}.items", depth + 1)
            least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
            inner = repeated(items, quoted(self._dialect.comma), least, None if most is None else int(most))
            return sequence('"["', inner, '"]"')
        if kind == "string" and self._dialect.escapes == "none":
            return self._raw_string(schema, at)
        if kind in ("boolean", "null"):
            values = (True, False) if kind == "boolean" else (None,)
            return either(*(quoted(self._dialect.write(value)) for value in values))
        return self._writer.json({"type": kind, **schema}, at)

    def _object(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        return self._writer.rule(sequence('"{"', self._members(schema, self._member, at, depth), '"}"'))

    def _keyword(self, name: str, rule: str, at: str) -> str:
        """An argument by keyword."""
        read = ValueReader(self._dialect, members=True)
        read.read(f"{name}=0)", 0, final=True)
        self._check(name, at, is_read=read.value == {name: 0})
        return sequence(quoted(f"{name}="), rule)

    def _member(self, name: str, rule: str, at: str) -> str:
        """A member of an object."""
        written = "" if self._dialect.quotes[0] in name else self._dialect.key(name) + self._dialect.colon
        self._check(name, at, is_read=self._read("{" + written + "0}") == {name: 0})
        return sequence(quoted(written), rule)

    def _listed(self, value: object, at: str) -> str:
        """A value that a schema lists."""
        try:
            written = self._dialect.write(value)
        except ValueError:  # a string holds what strings are quoted with
            written = ""
        held = json.dumps(value, ensure_ascii=False)
        self._check(held, at, is_read=bool(written) and self._read(written) == value)
        return self._writer.literal(written)

    def _read(self, written: str) -> Any:
        """The value that a reader finds in a text; None: it finds none."""
        reader = ValueReader(self._dialect)
        return reader.value if reader.read(written, 0, final=True) == (Verdict.DONE, len(written)) else None

    def _check(self, text: str, at: str, *, is_read: bool) -> None:
        """Refuse a text that is read as another one, or holds what is the format's own."""
        if not is_read or not self._writer.is_spelled(text):
            raise InvalidInput("cannot be written in this model's format", field=at)

    def _members(self, schema: Mapping[str, Any], member: Callable[[str, str, str], str], at: str, depth: int) -> str:
        """Members in the order in which the schema has them."""
        properties, required = properties_of(schema, at)
        comma = quoted(self._dialect.comma)
        if self._calls.arguments.sorted:
            properties = dict(sorted(properties.items(), key=lambda item: item[0].lower()))
        if not properties and schema.get("additionalProperties", True) is not False:
            value = self._value(schema.get("additionalProperties", True), f"{at}.additionalProperties", depth + 1)
            name = self._writer.terminal(r"/[A-Za-z_][A-Za-z0-9_]*/")
            between = '"="' if at == "" and self._calls.arguments.syntax == "python" else quoted(self._dialect.colon)
            if not self._dialect.bare_keys and between != '"="':
                name = self._writer.json({"type": "string"}, at)
            return repeated(sequence(name, between, value), comma, 0, None)
        rules = [
            (member(name, self._value(item, f"{at}.properties.{name}", depth + 1), at), name in required)
            for name, item in properties.items()
        ]
        return self._in_order(rules, comma)

    def _in_order(self, rules: Sequence[tuple[str, bool]], comma: str) -> str:
        """Members of which some may be left out; a comma stands between those that are there."""
        # Two rules a member: what follows where nothing stands before it, and where something does.
        first, later = '""', '""'
        for rule, needed in reversed(rules):
            here_first, here_later = sequence(rule, later), sequence(comma, rule, later)
            first = self._writer.rule(here_first if needed else either(here_first, first))
            later = self._writer.rule(here_later if needed else either(here_later, later))
        return first

    def _any(self, depth: int) -> str:
        """Any value, as deep as is allowed."""
        scalars = self._writer.rule(
            either(
                *(quoted(self._dialect.write(value)) for value in (True, False, None)),
                self._typed({}, "number", "", depth),
                self._typed({}, "string", "", depth),
            )
        )
        comma, colon = quoted(self._dialect.comma), quoted(self._dialect.colon)
        key = self._writer.terminal(r"/[A-Za-z_][A-Za-z0-9_]*/")
        if not self._dialect.bare_keys:
            key = self._writer.json({"type": "string"}, "")
        name = "any_value"
        items = sequence('"["', repeated(name, comma, 0, None), '"]"')
        members = sequence('"{"', repeated(sequence(key, colon, name), comma, 0, None), '"}"')
        rule = f"{name}: {scalars} | {items} | {members}"
        if rule not in self._writer.rules:
            self._writer.rules.append(rule)
        return name

    def _raw_string(self, schema: Mapping[str, Any], at: str) -> str:
        """A string without escapes, between quotes."""
        quote = self._dialect.quotes[0]
        body = string_terminal(schema, at)
        if self._writer.begins_special(quote):
            inner = self._writer.terminal(body)
            return sequence(self._writer.literal(quote), f"{inner}?", self._writer.literal(quote))
        inner = self._writer.terminal(f"({without([quote], body)}) {quoted(quote)}")
        return sequence(quoted(quote), inner)
