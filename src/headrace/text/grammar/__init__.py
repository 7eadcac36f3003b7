"""Constrained generation: grammar sources, and what follows them token by token."""

from headrace.text.grammar.engine import Grammar, GrammarEngine, GrammarMatcher, Mask
from headrace.text.grammar.errors import GrammarError

__all__ = ["Grammar", "GrammarEngine", "GrammarError", "GrammarMatcher", "Mask"]
