"""``Analysis``: a fact about every e-class, computed from its nodes and kept true while classes merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.compiler.egraph.node import ClassId, EGraphError, ENode

if TYPE_CHECKING:
    from headrace.compiler.egraph.graph import EGraph

D = TypeVar("D")


class Contradiction(Exception):
    """Raised by ``Analysis.merge``: no class can have both facts."""


class Conflict(EGraphError):
    """Two facts about one class contradict each other: two things were called equal that are not.

    The rule (or the analysis) that is named is wrong. The e-graph must not be used any further.

    Attributes:
        analysis: Whose facts they are.
        eclass: The class.
        left: The fact that the class had.
        right: The fact that came.
        because: Name of the rule that called for the union, or of what else brought the second fact.
    """

    def __init__(self, analysis: str, eclass: ClassId, left: object, right: object, because: str, detail: str) -> None:
        super().__init__(
            f"class {eclass} would be {left!r} and {right!r} at once ({analysis}, because of {because!r})"
            + (f": {detail}" if detail else "")
        )
        self.analysis = analysis
        self.eclass = eclass
        self.left = left
        self.right = right
        self.because = because


class Analysis(Generic[D]):
    """What can be said of a class whichever of its nodes is looked at: type, constant value, interval, ...

    Facts are immutable values that ``==`` compares. Merging must be commutative, associative and idempotent, and must
    reach an end after finitely many steps (a join in a lattice of finite height).
    """

    name: str = ""

    def make(self, graph: EGraph, node: ENode) -> D:
        """The fact that follows from a node and from its children's facts (of any analysis of the graph)."""
        raise NotImplementedError

    def merge(self, left: D, right: D) -> D:
        """The fact that says what both say.

        Raises:
            Contradiction: They cannot both hold.
        """
        raise NotImplementedError

    def modify(self, graph: EGraph, eclass: ClassId) -> None:
        """Act on a new or sharpened fact, such as adding the constant that a class was found to equal."""
