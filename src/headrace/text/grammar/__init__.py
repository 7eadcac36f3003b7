"""Constrained generation: sources of grammars, their trial, and what follows them token by token."""

from headrace.text.grammar.check import GrammarCheck
from headrace.text.grammar.engine import Grammar, GrammarEngine, GrammarMatcher, Mask
from headrace.text.grammar.errors import GrammarError
from headrace.text.grammar.sources import (
    choice_source,
    grammar_source,
    json_object_source,
    json_schema_source,
    regex_source,
)

__all__ = [
    "Grammar",
    "GrammarCheck",
    "GrammarEngine",
    "GrammarError",
    "GrammarMatcher",
    "Mask",
    "choice_source",
    "grammar_source",
    "json_object_source",
    "json_schema_source",
    "regex_source",
]
