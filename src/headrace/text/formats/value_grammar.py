"""``ArgumentGrammar``: the grammar of a call's arguments, from a tool's JSON Schema and a way to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.kinds import follow
from headrace.text.formats.lark import GrammarWriter, either, quoted, repeated, sequence, without
from headrace.text.formats.notation import Calls
from headrace.text.formats.pair_grammar import PairGrammar
from headrace.text.formats.tool_schema import allow_only, keywords_of, properties_of, string_terminal, types_of

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

    def arguments(self) -> str:
        """The rule for the arguments.

        Raises:
            InvalidInput: The schema cannot be enforced in this format; ``field`` is the way to the keyword.
        """
        syntax = self._calls.arguments.syntax
        if syntax == "json" and self._dialect.is_json:
            return self._writer.json(self._root, "")
        if syntax == "pairs":
            return PairGrammar(self._writer, self._calls, self._root).arguments()
        schema = keywords_of(follow(self._root, self._root), "object", "")
        if syntax == "python":
            return self._members(schema, lambda name, rule, at: sequence(quoted(f"{name}="), rule), "", 0)
        return self._object(schema, "", 0)

    # --- values that are not JSON -------------------------------------------------------------------------------

    def _value(self, schema: object, at: str, depth: int) -> str:
        """The rule for a value of a schema; ``at`` is the way to it."""
        if depth > _DEEPEST:
            raise InvalidInput(f"is nested more than {_DEEPEST} deep, which this model's format cannot hold", field=at)
        if schema is True or schema == {}:
            return self._any(depth)
        if not isinstance(schema, Mapping):
            raise InvalidInput("allows nothing", field=at)
        schema = follow(schema, self._root)
        for keyword in ("enum", "const"):
            if keyword in schema:
                values = schema[keyword] if keyword == "enum" else [schema[keyword]]
                return either(*(self._writer.literal(self._dialect.write(value)) for value in values))
        if "anyOf" in schema:
            allow_only(schema, {"anyOf"}, at)
            choices = enumerate(schema["anyOf"])
            return either(*(self._value(item, f"{at}.anyOf[{i}]", depth + 1) for i, item in choices))
        return self._writer.rule(either(*(self._typed(schema, one, at, depth) for one in types_of(schema))))

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
        def member(name: str, rule: str, at: str) -> str:
            return sequence(self._writer.literal(self._dialect.key(name) + self._dialect.colon), rule)

        return self._writer.rule(sequence('"{"', self._members(schema, member, at, depth), '"}"'))

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
