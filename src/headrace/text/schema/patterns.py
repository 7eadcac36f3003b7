"""Regular expressions of JSON Schema (ECMA-262 with the u flag) as languages.

A pattern may match anywhere in a text, and what an assertion such as ``$`` or ``(?!x)`` says depends on what follows.
So an expression is read as a function of the language of all that follows it: ``$`` leaves of it the empty text,
``(?!x)`` what does not begin with x. That is exact. What looks back (``\\b``, ``(?<=x)``, ``\\1``) is refused.
"""

from __future__ import annotations

from headrace.text.schema import characters
from headrace.text.schema.expressions import (
    Choice,
    Edge,
    Expression,
    Look,
    One,
    PatternError,
    PatternParser,
    Repeat,
    Sequence,
)
from headrace.text.schema.regex import Language, Languages


def pattern_language(languages: Languages, pattern: str) -> Language:
    """The texts in which a pattern matches somewhere.

    Raises:
        PatternError: It is malformed, or cannot be enforced.
    """
    expression = PatternParser(pattern).parse()
    anything = languages.anything
    at_start = _before(languages, expression, anything, at_start=True)
    later = _before(languages, expression, anything, at_start=False)
    if at_start is later:
        return languages.sequence([anything, later])
    any_character = languages.characters(characters.ANY)
    return languages.union([at_start, languages.sequence([any_character, anything, later])])


def whole_language(languages: Languages, pattern: str) -> Language:
    """The texts that a pattern matches from beginning to end.

    Raises:
        PatternError: It is malformed, or cannot be enforced.
    """
    return _before(languages, PatternParser(pattern).parse(), languages.empty_text, at_start=True)


def _before(languages: Languages, expression: Expression, rest: Language, *, at_start: bool) -> Language:
    """The language of ``expression`` with ``rest`` after it."""
    match expression:
        case One(members):
            return languages.sequence([languages.characters(members), rest])
        case Choice(options):
            return languages.union([_before(languages, option, rest, at_start=at_start) for option in options])
        case Edge(at_end):
            if at_end:
                return languages.intersection([languages.empty_text, rest])
            return rest if at_start else languages.nothing
        case Look(part, negated):
            ahead = _before(languages, part, languages.anything, at_start=at_start)
            return languages.intersection([languages.complement(ahead) if negated else ahead, rest])
        case Sequence(parts):
            return _sequence_before(languages, parts, rest, at_start=at_start)
    return _repeat_before(languages, expression, rest, at_start=at_start)


def _sequence_before(
    languages: Languages, parts: tuple[Expression, ...], rest: Language, *, at_start: bool
) -> Language:
    starts = []
    for part in parts:
        starts.append(at_start)
        at_start = at_start and _is_assertion(part)
    for i in reversed(range(len(parts))):
        if _has_start(parts[i]) and not starts[i] and any(_may_be_empty(part) for part in parts[:i]):
            raise PatternError("has ^ after what may be empty; write the alternatives one by one")
        rest = _before(languages, parts[i], rest, at_start=starts[i])
    return rest


def _repeat_before(languages: Languages, repeat: Repeat, rest: Language, *, at_start: bool) -> Language:
    part, low, high = repeat.part, repeat.low, repeat.high
    if not _asserts(part):
        once = _before(languages, part, languages.empty_text, at_start=False)
        return languages.sequence([languages.repeat(once, low, high), rest])
    if (low, high) == (0, 1):
        return languages.union([rest, _before(languages, part, rest, at_start=at_start)])
    raise PatternError("repeats an assertion; move ^, $ and (?...) out of what is repeated")


def _inner(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Sequence(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part) | Look(part):
            return (part,)
    return ()


def _asserts(expression: Expression) -> bool:
    return isinstance(expression, Edge | Look) or any(map(_asserts, _inner(expression)))


def _has_start(expression: Expression) -> bool:
    return expression == Edge(False) or any(map(_has_start, _inner(expression)))


def _is_assertion(expression: Expression) -> bool:
    """Whether it never takes a character."""
    match expression:
        case Edge() | Look():
            return True
        case Sequence(parts):
            return all(map(_is_assertion, parts))
        case Choice(options):
            return all(map(_is_assertion, options))
    return False


def _may_be_empty(expression: Expression) -> bool:
    match expression:
        case One():
            return False
        case Sequence(parts):
            return all(map(_may_be_empty, parts))
        case Choice(options):
            return any(map(_may_be_empty, options))
        case Repeat(part, low):
            return low == 0 or _may_be_empty(part)
    return True
