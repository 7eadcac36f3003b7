"""From a JSON Schema to the rules of a grammar that admits its instances and nothing else."""

from __future__ import annotations

from enum import Enum
from typing import Any

from headrace.text.schema import limits
from headrace.text.schema.alternatives import Alternatives
from headrace.text.schema.arrays import array_part
from headrace.text.schema.builder import Builder
from headrace.text.schema.document import Document
from headrace.text.schema.objects import object_part
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.regex import Languages, TooLarge
from headrace.text.schema.rules import Part, Rules, choice
from headrace.text.schema.shapes import ArrayShape, Goal, ObjectShape, Shape
from headrace.text.schema.spacing import Spacing
from headrace.text.schema.strings import StringLanguages
from headrace.text.schema.tool_dialect import check_tool_schema, without_id


class Dialect(Enum):
    """Which schemas are taken.

    Attributes:
        FULL: JSON Schema 2020-12.
        TOOL: The narrower schemas of tools, in which likely mistakes are refused (``tool_dialect.py``).
    """

    FULL = "full"
    TOOL = "tool"


def schema_rules(
    schema: Any,
    *,
    field: str,
    dialect: Dialect = Dialect.FULL,
    spacing: Spacing = Spacing.COMPACT,
    prefix: str = "json",
) -> tuple[str, str]:
    """The grammar of the instances of a JSON Schema.

    Whatever it admits is valid; and every valid instance has a text that it admits, with the keys of objects in the
    order in which the schema names them.

    Args:
        schema: What ``json.loads`` gives of a schema of draft 2020-12.
        field: What the caller calls the schema, such as ``response_format.json_schema.schema``.
        dialect: Which schemas are taken.
        spacing: How JSON is laid out.
        prefix: Begins the names of all rules: lower-case letters and digits, a letter first.

    Returns:
        The name of the rule to start with, and the rules as llguidance's Lark.

    Raises:
        InvalidInput: The schema is not valid, too large, not satisfiable, or says what no grammar can.
    """
    try:
        document = Document(without_id(schema) if dialect is Dialect.TOOL else schema)
        if dialect is Dialect.TOOL:
            check_tool_schema(document)
        alternatives = Alternatives(document)
        strings = StringLanguages(Languages(), _pattern_places(document))
        builder = Builder(alternatives, strings, Rules(prefix), spacing)
        start = builder.goal(alternatives.root()).rule
        for goal, name in builder.pending():
            builder.rules.bodies[name] = choice(_parts(builder, goal, alternatives.of(goal)))
            if len(builder.rules.bodies) > limits.MAX_RULES:
                raise Refused((), f"makes more than {limits.MAX_RULES} rules; use a simpler schema")
        text = builder.rules.text(start)
    except Refused as refused:
        raise refused.as_invalid_input(field) from None
    except (RecursionError, TooLarge):
        raise Refused((), "is too deep or too complex; use a simpler schema").as_invalid_input(field) from None
    if text is None:
        raise Refused((), "admits no finite value; remove the contradiction").as_invalid_input(field)
    if len(text) > limits.MAX_SOURCE:
        raise Refused((), "makes too large a grammar; use a simpler schema").as_invalid_input(field)
    return start, text


def _parts(builder: Builder, goal: Goal, shapes: tuple[Shape, ...]) -> list[Part]:
    parts = builder.scalars(goal, shapes)
    parts += [array_part(builder, goal, shape) for shape in shapes if isinstance(shape, ArrayShape)]
    parts += [object_part(builder, goal, shape) for shape in shapes if isinstance(shape, ObjectShape)]
    return parts


def _pattern_places(document: Document) -> dict[str, Place]:
    """Where each pattern stands first."""
    places: dict[str, Place] = {}
    for node in document.nodes:
        if isinstance(node.schema, dict):
            if "pattern" in node.schema:
                places.setdefault(node.schema["pattern"], (*node.place, "pattern"))
            for pattern in node.schema.get("patternProperties", ()):
                places.setdefault(pattern, (*node.place, "patternProperties", pattern))
    return places
