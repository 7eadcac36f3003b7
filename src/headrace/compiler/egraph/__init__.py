"""Equality saturation: an e-graph, rules that grow it, and programs drawn from it. Knows nothing of the IR."""

from headrace.compiler.egraph.analysis import Analysis, Conflict, Contradiction
from headrace.compiler.egraph.extract import cheapest, crossover, mutate, random_choice
from headrace.compiler.egraph.graph import EGraph
from headrace.compiler.egraph.node import ClassId, EGraphError, ENode, Head, Union
from headrace.compiler.egraph.pattern import Attr, Match, Node, Pattern, PatternError, Var, build, find_all
from headrace.compiler.egraph.rules import Limits, Rule, RuleStats, SaturationReport, saturate
from headrace.compiler.egraph.space import Choice, Cost, Genes, NoProgram, Space, walk

__all__ = [
    "Analysis",
    "Attr",
    "Choice",
    "ClassId",
    "Conflict",
    "Contradiction",
    "Cost",
    "EGraph",
    "EGraphError",
    "ENode",
    "Genes",
    "Head",
    "Limits",
    "Match",
    "NoProgram",
    "Node",
    "Pattern",
    "PatternError",
    "Rule",
    "RuleStats",
    "SaturationReport",
    "Space",
    "Union",
    "Var",
    "build",
    "cheapest",
    "crossover",
    "find_all",
    "mutate",
    "random_choice",
    "saturate",
    "walk",
]
