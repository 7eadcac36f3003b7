"""Sources of grammars: what a request asks for, as the text that ``GrammarEngine`` compiles.

Whatever a source is made of has been through a gate, so a source may be compiled without fear of what it says. What it
costs is another matter: ``check.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from headrace.errors import InvalidInput
from headrace.text.grammar.user_lark import checked_lark
from headrace.text.schema import Dialect, Spacing, schema_rules
from headrace.text.schema.expressions import PatternError
from headrace.text.schema.notation import as_text, literal
from headrace.text.schema.patterns import whole_language
from headrace.text.schema.regex import Languages, TooLarge

# Masks alone are asked for; what a grammar forces is found by them.
HEAD = '%llguidance {"no_forcing": true}\n'
MAX_CHOICES = 1000
MAX_CHOICE_CHARACTERS = 64 << 10
MAX_GBNF_CHARACTERS = 16 << 10
MAX_GBNF_RULES = 200
GBNF_RULE = re.compile(r"[ \t]*[A-Za-z][A-Za-z0-9-]*[ \t]*::=")


def json_object_source(*, spacing: Spacing = Spacing.FLEXIBLE) -> str:
    """Any JSON object."""
    return json_schema_source({"type": "object"}, field="", spacing=spacing)


def json_schema_source(
    schema: Any, *, field: str, dialect: Dialect = Dialect.FULL, spacing: Spacing = Spacing.FLEXIBLE
) -> str:
    """The instances of a JSON Schema.

    Args:
        schema: What ``json.loads`` gives of it.
        field: What the caller calls it.
        dialect: Which schemas are taken.
        spacing: How the JSON is laid out.

    Raises:
        InvalidInput: The schema is invalid, or cannot be enforced exactly.
    """
    start, rules = schema_rules(schema, field=field, dialect=dialect, spacing=spacing)
    return f"{HEAD}start: {start}\n{rules}"


def regex_source(pattern: str, *, field: str) -> str:
    """The texts that a regular expression (of ECMA-262, as in JSON Schema) matches from beginning to end.

    Raises:
        InvalidInput: It is malformed, matches nothing, or says what cannot be enforced.
    """
    languages = Languages()
    try:
        language = whole_language(languages, pattern)
        if languages.is_empty(language):
            raise PatternError("matches no text")
    except PatternError as error:
        raise InvalidInput(f"the regular expression {error}", field=field, code="grammar") from None
    except (TooLarge, RecursionError):
        raise InvalidInput("the regular expression is too complex", field=field, code="grammar") from None
    return f"{HEAD}start: TEXT\nTEXT: {as_text(languages, language)}\n"


def choice_source(choices: Sequence[str], *, field: str) -> str:
    """One of a list of texts.

    Raises:
        InvalidInput: There are none, too many, or an empty one.
    """
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidInput(f"must have between 1 and {MAX_CHOICES} choices", field=field, code="grammar")
    if sum(map(len, choices)) > MAX_CHOICE_CHARACTERS:
        raise InvalidInput(f"is longer than {MAX_CHOICE_CHARACTERS >> 10} KiB in all", field=field, code="grammar")
    for i, text in enumerate(choices):
        if not text:
            raise InvalidInput("must not be empty", field=f"{field}[{i}]", code="grammar")
    return f"{HEAD}start: TEXT\nTEXT: {' | '.join(literal(text) for text in dict.fromkeys(choices))}\n"


def grammar_source(text: str, *, field: str, spacing: Spacing = Spacing.FLEXIBLE) -> str:
    """A grammar that a user wrote: llguidance's Lark, or the GBNF of llama.cpp, told apart by ``::=``.

    Raises:
        InvalidInput: It cannot be read, or says what is not allowed.
    """
    if any(GBNF_RULE.match(line) for line in text.split("\n")):
        text = _lark_of_gbnf(text, field)
    return HEAD + checked_lark(text, field=field, spacing=spacing)


def _lark_of_gbnf(text: str, field: str) -> str:
    # The converter's time grows with the square of what it is given, and its depth with the parentheses.
    if len(text) > MAX_GBNF_CHARACTERS or text.count("::=") > MAX_GBNF_RULES:
        message = (
            f"the grammar is longer than {MAX_GBNF_CHARACTERS >> 10} KiB or {MAX_GBNF_RULES} rules; write it in Lark"
        )
        raise InvalidInput(message, field=field, code="grammar")
    try:
        lark = gbnf_to_lark(re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", _unescaped, text))
    except Exception as error:  # the converter raises bare ones
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InvalidInput(f"the GBNF grammar cannot be read: {reason}", field=field, code="grammar") from None
    return lark.replace("%llguidance {}", "", 1)


def _unescaped(match: re.Match[str]) -> str:
    """A hexadecimal escape as its character where that is plain: the converter drops zeros of such escapes."""
    code = match.group(1)
    if len(code) == 1:
        return match.group()
    point = int(code[1:], 16)
    character = chr(point) if point <= 0x10FFFF else ""
    plain = character.isprintable() and character not in '"\\/[]^-'
    return character if plain else match.group()
