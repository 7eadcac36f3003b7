"""``ArgumentGrammar``: the grammar of a call's arguments, from a tool's JSON Schema and a way to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.kinds import OTHER, STRING, follow, kinds_of
from headrace.text.formats.lark import ANY_TEXT, GrammarWriter, either, quoted, repeated, sequence, without
from headrace.text.formats.notation import Calls

ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "contentEncoding",
        "contentMediaType",
    ]
)
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_LOOKS_LIKE_JSON = r"/\s*(-?[0-9][0-9.eE+\-]*|true|false|null|True|False|None|[\[{](?s:.*))\s*/"
_SCALARS = {
    "boolean": "true|false",
    "null": "null",
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?",
}
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
        schema = self._checked(follow(self._root, self._root), "object", "")
        if syntax == "python":
            return self._members(schema, lambda name, rule, at: sequence(quoted(f"{name}="), rule), "", 0)
        if syntax == "pairs":
            return self._pairs(schema)
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
            self._only(schema, {"anyOf"}, at)
            choices = enumerate(schema["anyOf"])
            return either(*(self._value(item, f"{at}.anyOf[{i}]", depth + 1) for i, item in choices))
        given = schema.get("type", _TYPES)
        types = [given] if isinstance(given, str) else list(given)
        return self._writer.rule(either(*(self._typed(schema, one, at, depth) for one in types)))

    def _typed(self, schema: Mapping[str, Any], kind: str, at: str, depth: int) -> str:
        schema = self._checked(schema, kind, at)
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
        properties, required = _properties(schema, at)
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
        body = _string_body(schema, at)
        if self._writer.begins_special(quote):
            inner = self._writer.terminal(body)
            return sequence(self._writer.literal(quote), f"{inner}?", self._writer.literal(quote))
        inner = self._writer.terminal(f"({without([quote], body)}) {quoted(quote)}")
        return sequence(quoted(quote), inner)

    # --- pairs --------------------------------------------------------------------------------------------------

    def _pairs(self, schema: Mapping[str, Any]) -> str:
        """One argument after the other; the required ones are there."""
        properties, required = _properties(schema, "")
        pattern = self._calls.pair
        place = next(i for i, piece in enumerate(pattern) if piece.name == "value")
        after = "".join(piece.text for piece in pattern[place + 1 :])
        before = [piece.text for piece in pattern[:place] if not piece.is_field]
        rules = []
        for name, item in properties.items():
            head = self._writer.literal(name.join(before))
            rule = self._writer.rule(sequence(head, self._pair_value(item, after, f".properties.{name}")))
            rules.append(rule if name in required else f"{rule}?")
        if not properties and schema.get("additionalProperties", True) is not False:
            key = self._writer.terminal(r"/[A-Za-z0-9_\-. ]+/")
            value = self._pair_value(schema.get("additionalProperties", True), after, ".additionalProperties")
            parts = [self._writer.literal(before[0]), key, *(self._writer.literal(text) for text in before[1:])]
            return f"{self._writer.rule(sequence(*parts, value))}*"
        return sequence(*rules)

    def _pair_value(self, schema: object, after: str, at: str) -> str:
        """A value and what stands after it: a string as it is, anything else as JSON."""
        if schema is True or schema == {}:
            return self._raw(ANY_TEXT, after)
        if not isinstance(schema, Mapping):
            raise InvalidInput("allows nothing", field=at)
        schema = follow(schema, self._root)
        kinds = kinds_of(schema, self._root)
        if "anyOf" in schema and kinds != {OTHER}:
            self._only(schema, {"anyOf"}, at)
            return either(*(self._mixed(item, after, f"{at}.anyOf[{i}]") for i, item in enumerate(schema["anyOf"])))
        if kinds == {STRING} and not schema.keys() & {"enum", "const"}:
            return self._raw(_string_body(self._checked(schema, "string", at), at), after)
        if kinds == {OTHER}:
            return self._json_pair(schema, after, at)
        return self._mixed(schema, after, at)

    def _mixed(self, schema: object, after: str, at: str) -> str:
        """One of the ways to be a string or something else: what looks like JSON is no string then."""
        if not isinstance(schema, Mapping):
            raise InvalidInput("cannot be enforced in this model's format", field=at)
        schema = follow(schema, self._root)
        kinds = kinds_of(schema, self._root)
        rules = []
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            plain = [value if isinstance(value, str) else self._word(value) for value in values]
            return either(*(self._writer.literal(text + after) for text in plain))
        if STRING in kinds:
            body = _string_body(self._checked({**schema, "type": "string"}, "string", at), at)
            rules.append(self._raw(f"({body}) & ~{_LOOKS_LIKE_JSON}", after))
        if OTHER in kinds:
            given = schema.get("type", _TYPES)
            others = [one for one in ([given] if isinstance(given, str) else given) if one != "string"]
            rules += [self._other(schema, one, after, at) for one in others]
        return either(*rules)

    def _other(self, schema: Mapping[str, Any], kind: str, after: str, at: str) -> str:
        """A value that is no string, where a string could stand too: one word for the lexer, as that would be."""
        if kind not in _SCALARS:
            return self._json_pair({**schema, "type": kind}, after, at)
        if kind != "null" and schema.keys() & _OF_TYPE["number"]:
            raise InvalidInput("cannot be enforced beside strings in this model's format", field=at)
        words = {"boolean": ("True", "False"), "null": ("None",)}.get(kind, ())
        spelled = "|".join([_SCALARS[kind], *(words if self._dialect.words == "python" else ())])
        if not self._writer.is_spelled(after):
            return sequence(self._writer.terminal(f"/{spelled}/"), self._writer.literal(after))
        return self._writer.terminal(f"/({spelled})/ {quoted(after)}")

    def _json_pair(self, schema: Mapping[str, Any], after: str, at: str) -> str:
        """JSON, or true, false and null as the format spells them."""
        rule = self._writer.json(self._with_definitions(schema), at)
        if self._dialect.words == "python":
            types = schema.get("type", ())
            types = [types] if isinstance(types, str) else types
            words = [w for one, ws in (("boolean", ("True", "False")), ("null", ("None",))) if one in types for w in ws]
            if "enum" not in schema and "const" not in schema:
                rule = either(rule, *(quoted(word) for word in words))
        return sequence(rule, self._writer.literal(after))

    def _raw(self, body: str, after: str) -> str:
        """A text of this form that is ended by ``after``, and does not hold what ends it for a reader."""
        closing = after.strip() or after
        if self._writer.is_spelled(after):
            lead = after[: len(after) - len(after.lstrip())]
            return self._writer.terminal(
                f"({without([closing.split()[0]], body)}) {quoted(after)}" if lead or after else body
            )
        return sequence(f"{self._writer.terminal(body)}?", self._writer.literal(after))

    def _word(self, value: object) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else self._dialect.write(value)

    # --- schemas ------------------------------------------------------------------------------------------------

    def _with_definitions(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """A part of the schema with what it may refer to."""
        if "$ref" not in json.dumps(schema):
            return schema
        return {**{key: self._root[key] for key in ("$defs", "definitions") if key in self._root}, **schema}

    def _checked(self, schema: Mapping[str, Any], kind: str, at: str) -> Mapping[str, Any]:
        """The keywords that say something of values of this type.

        Raises:
            InvalidInput: There is one that cannot be enforced.
        """
        applicable = _OF_TYPE.get("number" if kind == "integer" else kind, frozenset())
        elsewhere = frozenset[str]().union(*_OF_TYPE.values()) - applicable
        self._only(schema, applicable | elsewhere | {"type"}, at)
        return {key: value for key, value in schema.items() if key in applicable}

    def _only(self, schema: Mapping[str, Any], keywords: set[str] | frozenset[str], at: str) -> None:
        for keyword in schema:
            if keyword not in keywords and keyword not in ANNOTATIONS:
                raise InvalidInput("cannot be enforced in this model's format", field=f"{at}.{keyword}")


def _properties(schema: Mapping[str, Any], at: str) -> tuple[dict[str, Any], frozenset[str]]:
    properties = dict(schema.get("properties") or {})
    required = frozenset(schema.get("required") or ())
    missing = sorted(required - set(properties))
    if missing:
        raise InvalidInput(f"names {missing[0]!r}, which is not in properties", field=f"{at}.required")
    return properties, required


def _string_body(schema: Mapping[str, Any], at: str) -> str:
    """A terminal's body for strings as they are."""
    body = ANY_TEXT
    if "minLength" in schema or "maxLength" in schema:
        body = f"/(?s:.{{{int(schema.get('minLength', 0))},{_count(schema.get('maxLength'))}}})/"
    if "pattern" in schema:
        pattern = str(schema["pattern"])
        inner = pattern.removeprefix("^")
        inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
        if any(anchor in inner.replace("\\^", "").replace("\\$", "").replace("[^", "") for anchor in "^$"):
            raise InvalidInput("has an anchor that cannot be enforced in this model's format", field=f"{at}.pattern")
        before = "" if pattern.startswith("^") else "(?s:.*)"
        behind = "" if inner and pattern.endswith(inner + "$") else "(?s:.*)"
        body += f" & /{before}({inner.replace('/', chr(92) + '/')}){behind}/"
    return body


def _count(value: object) -> str:
    return "" if value is None else str(int(str(value).removesuffix(".0")))
