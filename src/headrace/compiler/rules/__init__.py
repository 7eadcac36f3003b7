"""Rewrite rules, and their use: ``optimize`` a graph. See README.md."""

from headrace.compiler.rules.optimize import EVERYTHING, MERGING, PHASES, Explored, explore, optimize
from headrace.compiler.rules.program import Assumptions, Blocks, ProgramGraph, read

__all__ = [
    "EVERYTHING",
    "MERGING",
    "PHASES",
    "Assumptions",
    "Blocks",
    "Explored",
    "ProgramGraph",
    "explore",
    "optimize",
    "read",
]
