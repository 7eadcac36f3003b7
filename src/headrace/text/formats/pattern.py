"""Patterns: text with named places in it, such as ``<invoke name="$name">``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

FIELDS = ("name", "arguments", "id", "record", "key", "value")
# What function names and ids are made of: OpenAI's letters, and those that others add.
IDENTIFIER = re.compile(r"[\w.\-/:@$]+")
_FIELD = re.compile(r"\$([a-z]+)")
_QUOTED_OR_BARE = re.compile(r'"?\$([a-z]+)"?')


class Piece(NamedTuple):
    """A part of a pattern.

    Attributes:
        text: Fixed text; empty for a place.
        name: What stands in the place; empty for fixed text.
    """

    text: str = ""
    name: str = ""

    @property
    def is_field(self) -> bool:
        """Whether it is a place."""
        return bool(self.name)


def parse_pattern(pattern: str) -> tuple[Piece, ...]:
    """The pieces of a pattern, in order.

    Raises:
        ValueError: A place has a name that is not in ``FIELDS``, or two places follow each other.
    """
    pieces: list[Piece] = []
    at = 0
    for found in _FIELD.finditer(pattern):
        if found[1] not in FIELDS:
            raise ValueError(f"${found[1]} is not known in a pattern; known are ${', $'.join(FIELDS)}")
        if found.start() > at:
            pieces.append(Piece(text=pattern[at : found.start()]))
        elif pieces and found[1] != "arguments":  # an object begins with a bracket, which is in no name
            raise ValueError(f"text must stand between ${pieces[-1].name} and ${found[1]}")
        pieces.append(Piece(name=found[1]))
        at = found.end()
    if at < len(pattern):
        pieces.append(Piece(text=pattern[at:]))
    return tuple(pieces)


class RecordForm(NamedTuple):
    """A call as one JSON object.

    Attributes:
        template: The object, with ``$name``, ``$arguments`` and ``$id`` as string values.
        paths: Where each of those stands.
    """

    template: Mapping[str, Any]
    paths: Mapping[str, tuple[str, ...]]

    def find(self, value: object, name: str) -> Any:
        """What an object has at the place of a field.

        Raises:
            KeyError: Nothing, or this form has no such place.
        """
        for key in self.paths[name]:
            if not isinstance(value, dict):
                raise KeyError(name)
            value = value[key]
        return value


def parse_record(record: str) -> RecordForm:
    """The form that a record describes.

    Raises:
        ValueError: It is not a JSON object with ``$name`` and ``$arguments``.
    """
    try:
        template = json.loads(_QUOTED_OR_BARE.sub(r'"$\1"', record))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"calls.record is not JSON: {error}") from error
    paths = {text[1:]: path for path, text in _leaves(template, ()) if text.startswith("$")}
    if not isinstance(template, dict) or not {"name", "arguments"} <= set(paths):
        raise ValueError("calls.record needs $name and $arguments in an object")
    return RecordForm(template, paths)


def _leaves(value: object, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    return [(path, value)] if isinstance(value, str) else []
