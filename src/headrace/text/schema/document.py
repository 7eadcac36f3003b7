"""A schema document: bounded, checked, its subschemas indexed, its references resolved."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from headrace.text.schema import limits
from headrace.text.schema.keywords import ASSERTIONS, check_keywords, subschemas
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.shapes import Goal

ROOT = "headrace:schema"  # the base of a document that names none


@dataclass(frozen=True, slots=True)
class Either:
    """A schema that is not in the document: one of these goals is reached."""

    goals: tuple[Goal, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A schema within a document.

    Attributes:
        schema: It, an object or a boolean; or what was made up besides.
        place: Where it stands.
        base: The URI of its resource, against which its references are resolved.
    """

    schema: dict[str, Any] | bool | Either
    place: Place
    base: str


@dataclass(slots=True)
class Document:
    """A document whose schemas are known by number; 0 is the root.

    Args:
        schema: What the caller sent: what ``json.loads`` gives.

    Raises:
        Refused: It is too large, or not valid by the metaschema.
    """

    schema: Any
    nodes: list[Node] = field(default_factory=list)
    has_dynamic_anchors: bool = False
    _numbers: dict[Place, int] = field(default_factory=dict)
    _resources: dict[str, Place] = field(default_factory=dict)
    _anchors: dict[tuple[str, str], Place] = field(default_factory=dict)
    _dynamic: set[tuple[str, str]] = field(default_factory=set)
    _added: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_size(self.schema)
        self._resources[ROOT] = ()
        self._enter(self.schema, (), ROOT)

    def number(self, place: Place) -> int:
        """The number of the schema at a place where there is one."""
        return self._numbers[place]

    def add(self, schema: dict[str, Any] | bool | Either, place: Place) -> int:
        """The number of a schema without subschemas that is not in the document; equal ones have one number.

        Args:
            schema: It.
            place: What to blame.
        """
        key = repr(schema)
        if key not in self._added:
            self._added[key] = len(self.nodes)
            self.nodes.append(Node(schema, place, ROOT))
        return self._added[key]

    def resolve(self, number: int, keyword: str) -> int:
        """The schema that a reference (``$ref`` or ``$dynamicRef``) of a schema names, dynamic scope aside.

        Raises:
            Refused: It names none in this document.
        """
        node = self.nodes[number]
        assert isinstance(node.schema, dict)
        place = (*node.place, keyword)
        resource, fragment = _absolute(node.base, node.schema[keyword])
        root = self._resources.get(resource)
        if root is None:
            raise Refused(place, "refers to another document; put what it means under $defs and refer to it there")
        if not fragment or fragment.startswith("/"):
            return self._at_pointer(root, fragment, place)
        target = self._anchors.get((resource, fragment))
        if target is None:
            raise Refused(place, f"refers to the anchor {fragment[:60]!r}, which is not in this schema")
        return self._numbers[target]

    def dynamic_target(self, number: int, scope: tuple[str, ...]) -> int:
        """What ``$dynamicRef`` means: the outermost resource of the dynamic scope that has the anchor decides.

        Args:
            number: The schema that refers.
            scope: The resources on the way to it, the outermost first.
        """
        target = self.resolve(number, "$dynamicRef")
        node = self.nodes[number]
        assert isinstance(node.schema, dict)
        name = _absolute(node.base, node.schema["$dynamicRef"])[1]
        if (self.nodes[target].base, name) not in self._dynamic:
            return target
        for resource in scope:
            if (resource, name) in self._dynamic:
                return self._numbers[self._anchors[resource, name]]
        return target

    def _enter(self, schema: Any, place: Place, base: str) -> None:
        """Number a schema and those within it."""
        todo = [(schema, place, base)]
        while todo:
            schema, place, base = todo.pop()
            check_keywords(schema, place)
            if isinstance(schema, dict):
                self._check_draft(schema, place)
                base = self._enter_names(schema, place, base)
                inner = [(value, (*place, *way), base) for way, value in subschemas(schema)]
                todo += reversed(inner)
            self._numbers[place] = len(self.nodes)
            self.nodes.append(Node(schema, place, base))
            if len(self.nodes) > limits.MAX_SUBSCHEMAS:
                raise Refused(place, f"makes more than {limits.MAX_SUBSCHEMAS} subschemas; use a smaller schema")

    def _check_draft(self, schema: dict[str, Any], place: Place) -> None:
        """In draft-07, what stands beside ``$ref`` counts for nothing, and few who write it know."""
        root = self.schema
        old = isinstance(root, dict) and "draft-07" in str(root.get("$schema", ""))
        beside = [keyword for keyword in schema if keyword in ASSERTIONS and keyword != "$ref"]
        if old and "$ref" in schema and beside:
            message = "counts for nothing beside $ref in draft-07; leave it out, or name draft 2020-12 in $schema"
            raise Refused((*place, beside[0]), message)

    def _enter_names(self, schema: dict[str, Any], place: Place, base: str) -> str:
        """Note what the schema is called; returns its base."""
        if "$id" in schema:
            base = _absolute(base, schema["$id"])[0]
            if self._resources.setdefault(base, place) != place:
                raise Refused((*place, "$id"), "is the $id of another subschema too; give each its own")
        for keyword in ("$anchor", "$dynamicAnchor"):
            if keyword in schema:
                key = base, schema[keyword]
                if self._anchors.setdefault(key, place) != place:
                    raise Refused((*place, keyword), "is an anchor of another subschema too; give each its own")
                if keyword == "$dynamicAnchor":
                    self._dynamic.add(key)
                    self.has_dynamic_anchors = True
        return base

    def _at_pointer(self, root: Place, pointer: str, reference: Place) -> int:
        """The schema that a JSON pointer names, counted from a resource."""
        value = _value_at(self.schema, root)
        place, base = root, self.nodes[self._numbers[root]].base
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            key: str | int = name
            if isinstance(value, list) and re.fullmatch("0|[1-9][0-9]{0,8}", name) and int(name) < len(value):
                key = int(name)
            elif not (isinstance(value, dict) and name in value):
                raise Refused(reference, f"refers to #{pointer[:100]}, which is not in this schema")
            value = value[key]
            place = (*place, key)
            if place in self._numbers:
                base = self.nodes[self._numbers[place]].base
        if place not in self._numbers:
            self._enter(value, place, base)
        return self._numbers[place]


def check_size(schema: Any) -> None:
    """Raise ``Refused`` if a document is too large, or holds what JSON does not."""
    values = characters = 0
    todo: list[tuple[Any, int]] = [(schema, 0)]
    while todo:
        value, depth = todo.pop()
        values += 1
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise Refused((), "has a key that is no string, so it is no JSON")
            characters += sum(_length(key) for key in value)
            todo += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list):
            todo += [(inner, depth + 1) for inner in value]
        elif isinstance(value, str):
            characters += _length(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise Refused((), f"holds {value}, which is no number in JSON")
        elif isinstance(value, int) and not isinstance(value, bool):
            if value.bit_length() > 4 * limits.MAX_NUMBER_DIGITS:
                raise Refused((), f"holds an integer of more than {limits.MAX_NUMBER_DIGITS} digits")
        elif value is not None and not isinstance(value, float | bool):
            raise Refused((), f"holds a {type(value).__name__}, which is no JSON value")
        if depth > limits.MAX_NESTING:
            raise Refused((), f"nests deeper than {limits.MAX_NESTING} levels; move what is inside to $defs")
        if values > limits.MAX_VALUES or len(todo) > limits.MAX_VALUES or characters > limits.MAX_CHARACTERS:
            raise Refused((), f"is larger than {limits.MAX_CHARACTERS >> 10} KiB or {limits.MAX_VALUES} values")


def _length(text: str) -> int:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused((), "holds a string with a lone surrogate, which is no Unicode text") from None
    return len(text)


def _value_at(value: Any, place: Place) -> Any:
    for part in place:
        value = value[part]
    return value


def _absolute(base: str, reference: str) -> tuple[str, str]:
    """The resource that a reference names, and the fragment within it.

    Raises:
        ValueError: It is no URI.
    """
    if reference.startswith("#"):
        return base, unquote(reference[1:])
    # `urljoin` joins only to what has a scheme that it knows.
    joined, fragment = urldefrag(urljoin(_UNNAMED if base == ROOT else base, reference))
    return (ROOT if joined == _UNNAMED else joined), unquote(fragment)


_UNNAMED = "http://schema.headrace.invalid/"
