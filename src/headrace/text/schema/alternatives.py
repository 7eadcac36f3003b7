"""Schemas as unions of shapes: what a value has to be so that a goal is reached.

Every claim, that a schema holds or that it does not, becomes a union of shapes: ``anyOf`` a union, ``allOf`` an
intersection, ``not`` the shapes of the opposite claim. Only what stands beside each other is multiplied out; what a
shape demands of inner values stays a goal, to be looked at in its turn (``compile.py``). So recursion is no trouble,
except for a schema that refers to itself with no array or object between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.text.schema import limits
from headrace.text.schema.document import Document, Either, Node
from headrace.text.schema.keywords import ANNOTATIONS
from headrace.text.schema.meeting import Merger, TooManyAlternatives
from headrace.text.schema.reader import SchemaReader, Shapes, without_notes
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.shapes import (
    ALL_SHAPES,
    ANYTHING,
    Claim,
    Goal,
    ObjectShape,
    Shape,
)

EMPTY_LOOK = 3  # levels of required properties that are looked into for a conflict


class Alternatives:
    """The shapes of goals about the schemas of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nothing: Goal = frozenset([Claim(document.add(False, ()))])
        self.merger = Merger()
        self._goals: dict[Goal, Shapes] = {}
        self._known: dict[tuple[Claim, bool], Shapes] = {}
        self._open: set[tuple[Claim, bool]] = set()

    def root(self) -> Goal:
        """The goal that the whole schema holds."""
        return self.goal_of(0, (), True)

    def of(self, goal: Goal) -> Shapes:
        """The shapes of the values that reach a goal.

        Raises:
            Refused: They are too many, or the schema refers to itself and to nothing else.
        """
        shapes = self._goals.get(goal)
        if shapes is None:
            shapes = ALL_SHAPES
            for claim in sorted(goal):
                node = self.document.nodes[claim.schema]
                try:
                    shapes = self.merger.both(shapes, self.of_claim(claim))
                except TooManyAlternatives:
                    raise self._too_many(node) from None
            self._goals[goal] = shapes
            self._goals[goal] = shapes = tuple(shape for shape in shapes if not self._is_hopeless(shape, EMPTY_LOOK))
        if len(self._goals) > limits.MAX_GOALS:
            raise Refused((), f"makes more than {limits.MAX_GOALS} combinations of subschemas; use a simpler schema")
        return shapes

    def denial(self, goal: Goal, place: Place) -> Goal:
        """The goal of not reaching a goal."""
        if len(goal) == 1:
            (claim,) = goal
            return frozenset([replace(claim, holds=not claim.holds)])
        return self.goal_of(self.document.add(Either((goal,)), place), (), False) if goal else self.nothing

    def place(self, goal: Goal, keyword: str = "") -> Place:
        """Where to look for what is wrong with a goal.

        Args:
            goal: It.
            keyword: What is to blame: where it stands in or below a schema of the goal, else anywhere.
        """
        roots = sorted((self.document.nodes[claim.schema].place for claim in goal), key=len) or [()]
        places = [
            (*node.place, keyword)
            for node in self.document.nodes
            if isinstance(node.schema, dict) and keyword in node.schema
        ]
        below = [place for place in places for root in roots if place[: len(root)] == root]
        return min(below or places, key=len, default=roots[0])

    def _too_many(self, node: Node) -> Refused:
        message = "comes apart into too many alternatives; use fewer or simpler anyOf, oneOf, not and if here"
        return Refused(node.place, message)

    def _is_hopeless(self, shape: Shape, depth: int) -> bool:
        """Whether a required property has a goal that nothing reaches, as can be seen without much ado."""
        if not depth or not isinstance(shape, ObjectShape):
            return False
        return any(name in shape.required and self._is_empty(goal, depth - 1) for name, goal in shape.named)

    def _is_empty(self, goal: Goal, depth: int) -> bool:
        return all(self._is_hopeless(shape, depth) for shape in self.of(goal))

    def of_claim(self, claim: Claim, *, tracked: bool = False) -> Shapes:
        """The shapes of the values for which a claim is true."""
        key = claim, tracked
        shapes = self._known.get(key)
        if shapes is None:
            node = self.document.nodes[claim.schema]
            if key in self._open:
                raise Refused(node.place, "refers to itself with no array or object between, so it says nothing")
            self._open.add(key)
            try:
                shapes = self._known[key] = self._read(claim, node, tracked)
            except TooManyAlternatives:
                raise self._too_many(node) from None
            finally:
                self._open.discard(key)
        return shapes

    def _read(self, claim: Claim, node: Node, tracked: bool) -> Shapes:
        schema = node.schema
        if isinstance(schema, bool):
            return ALL_SHAPES if schema == claim.holds else ()
        if isinstance(schema, Either):
            if claim.holds:
                return self.merger.either([self.of(goal) for goal in schema.goals])
            return self.all_of([self._denial(goal) for goal in schema.goals])
        reader = SchemaReader(self, node, schema, claim, tracked)
        shapes = reader.holding() if claim.holds else reader.failing()
        return shapes if tracked else self.merger.either([tuple(map(without_notes, shapes))])

    def _denial(self, goal: Goal) -> Shapes:
        """The shapes of the values that do not reach a goal."""
        return self.merger.either([self.of_claim(replace(claim, holds=not claim.holds)) for claim in sorted(goal)])

    def all_of(self, unions: Sequence[Shapes]) -> Shapes:
        """The intersection of unions of shapes."""
        shapes = ALL_SHAPES
        for union in unions:
            shapes = self.merger.both(shapes, union)
        return shapes

    def goal_of(self, number: int, scope: tuple[str, ...], holds: bool) -> Goal:
        """The goal that a schema holds, or does not."""
        node = self.document.nodes[number]
        schema = node.schema
        if isinstance(schema, bool):
            return ANYTHING if schema == holds else self.nothing
        if isinstance(schema, dict) and schema.keys() <= ANNOTATIONS:
            return ANYTHING if holds else self.nothing
        if self.document.has_dynamic_anchors and node.base not in scope:
            scope = (*scope, node.base)
        return frozenset([Claim(number, scope, holds)])
