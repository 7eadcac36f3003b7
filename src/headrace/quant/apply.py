"""``apply_recipe``: a program as a recipe wants it computed.

It changes what a program means, which rewrite rules never do. It belongs between two runs of the rules: after views
have moved down to the weights, so that a product's right side is a weight or a selection of its rows, and before
products of codes are made of products of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.compiler.interpret import bind
from headrace.compiler.ir import Builder, DType, Graph, Kind, Node, Op, Part, Program, Write
from headrace.compiler.schedule.facts import Contraction, Facts
from headrace.quant.products import (
    BlockAxes,
    Weights,
    f32,
    rounded_16_bits,
    rounded_asymmetric,
    rounded_bf16,
    rounded_symmetric,
)
from headrace.quant.recipes import Recipe
from headrace.quant.selection import Selection, Selections
from headrace.quant.weights import Form, WeightSource, form_of

KEPT_STATES = ("keys", "values")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program in a recipe's numbers.

    Attributes:
        program: What is computed. Weights have the names of the checkpoint; those that it stores in blocks became
            ``NAME.codes``, ``NAME.scales`` and, where they are stored, ``NAME.mins``.
        sources: How each of these inputs is got from a checkpoint, by name, with a ``*`` for the repetition. Weights
            that the checkpoint does not hold (constants of the model) are not among them.
    """

    program: Program
    sources: Mapping[str, WeightSource]


def apply_recipe(
    program: Program, recipe: Recipe, formats: Mapping[str, str], dims: Mapping[str, tuple[str, ...]]
) -> Prepared:
    """Insert a recipe's roundings, and weights as they are stored.

    Args:
        program: In float32.
        recipe: The numbers.
        formats: How the checkpoint stores each weight, by full name (see ``stored_formats``).
        dims: The axis of each dimension of each weight, names of repeated ones with a ``*``
            (``Captured.dims``).
    """
    parts, sources = [], {}
    for part in program.parts:
        rewriter = _Rewriter(part, recipe, _forms(part, formats), dims)
        graph = rewriter.run()
        parts.append(replace(part, graph=graph))
        sources.update({name: s for name, s in rewriter.weights.sources.items() if name in graph.inputs})
    return Prepared(Program(tuple(parts)), sources)


def _forms(part: Part, formats: Mapping[str, str]) -> dict[str, Form]:
    """The form of each weight of a part, if the checkpoint holds it."""
    forms = {}
    for name, declared in part.graph.inputs.items():
        full = [bind(name, repeat) for repeat in part.repeats]
        if declared.kind is Kind.WEIGHT and all(each in formats for each in full):
            forms[name] = form_of(formats[each] for each in full)
    return forms


class _Rewriter:
    """Writes one graph anew."""

    def __init__(
        self, part: Part, recipe: Recipe, forms: Mapping[str, Form], dims: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.graph, self.recipe = part.graph, recipe
        self.facts = Facts(part.graph)
        self.builder = Builder(dict(part.graph.axes))
        self.weights = Weights(self.builder, forms, dims, recipe)
        self.selections = Selections(self.facts, {name: dims[name][-1] for name in forms})
        self.new: list[int] = []
        self.rounded = {c.left: c.axis for c in self._of_state()} if recipe.attention == "bf16" else {}

    def run(self) -> Graph:
        for name, kind in self.graph.states.items():
            self.builder.state(name, self._state_dtype(name), kind.axes)
        for at, node in enumerate(self.graph.nodes):
            self.new.append(self._node(at, node))
        outputs = {name: (self.new[at], full.axes) for name, (at, full) in self.graph.outputs.items()}
        return self.builder.graph(outputs, [self._write(write) for write in self.graph.writes])

    def _of_state(self) -> list[Contraction]:
        """The products of attention."""
        return [c for c in self.facts.contractions.values() if self._is_state(c.right)]

    def _is_state(self, at: int) -> bool:
        node = self.facts.node(at)
        if node.op is Op.INPUT:
            return self.graph.inputs[str(node.attrs[0])].kind is Kind.STATE
        return node.op in (Op.CAST, Op.GATHER) and self._is_state(node.args[0])

    def _state_dtype(self, name: str) -> DType:
        dtype = self.graph.states[name].dtype
        kept = name.startswith(KEPT_STATES) and dtype is DType.F32
        return DType.BF16 if kept and self.recipe.states == "bf16" else dtype

    def _write(self, write: Write) -> Write:
        value = self._cast(self.new[write.value], self._state_dtype(write.state))
        return Write(write.state, write.axes, tuple(self.new[i] for i in write.indices), value)

    def _node(self, at: int, node: Node) -> int:
        if node.op is Op.INPUT:
            return self._input(str(node.attrs[0]))
        if node.op is Op.GATHER:
            return self._selection(at, node)
        args = tuple(self.new[a] for a in node.args)
        if at in self.facts.contractions:
            terms = self._products(self.facts.contractions[at])
            sums = [self.builder.node(Op.FOLD, node.attrs, (term, *args[1:])) for term in terms]
            return sums[0] if len(sums) == 1 else self.builder.add(*sums)
        if node.op is Op.FOLD and node.attrs[:2] == ("sum", self.rounded.get(node.args[0])):
            # What the weights of attention are divided by is the sum of those that are multiplied.
            args = (rounded_bf16(self.builder, args[0]), *args[1:])
        return self.builder.node(node.op, node.attrs, args)

    def _input(self, name: str) -> int:
        declared, b = self.graph.inputs[name], self.builder
        if declared.kind is Kind.STATE:
            return self._cast(b.read(declared.state, declared.version), declared.type.dtype)
        if name in self.weights.forms:
            return f32(b, self.weights.value(name, {}, self.weights.dims[name][-1]))
        return b.input(name, declared.type.dtype, declared.type.axes, declared.kind)

    def _selection(self, at: int, node: Node) -> int:
        """Stored numbers are selected before they are widened."""
        b, weight, source = self.builder, self.selections.of(at), self.facts.node(node.args[0])
        if weight is not None:
            return f32(b, self._value(weight))
        declared = self.graph.inputs[str(source.attrs[0])] if source.op is Op.INPUT else None
        if declared is not None and declared.kind is Kind.STATE:
            read = b.read(declared.state, declared.version)
            selected = b.node(Op.GATHER, node.attrs, (read, *(self.new[a] for a in node.args[1:])))
            return self._cast(selected, declared.type.dtype)
        return b.node(Op.GATHER, node.attrs, tuple(self.new[a] for a in node.args))

    def _cast(self, at: int, dtype: DType) -> int:
        return at if self.builder.types[at].dtype is dtype else self.builder.cast(at, dtype)

    def _value(self, weight: Selection) -> int:
        return self.weights.value(weight.name, {axis: self.new[i] for axis, i in weight.rows.items()}, weight.along)

    def _products(self, found: Contraction) -> list[int]:
        """The elementwise product of both sides, rounded, as a sum of so many terms."""
        b, left, right = self.builder, self.new[found.left], self.new[found.right]
        if found.left in self.rounded:
            return [b.mul(rounded_bf16(b, left), right)]
        if self.facts.constant[found.left] or not self.selections.made_of_weights(found.right):
            return [b.mul(left, right)]
        if self.recipe.activations == "int8":
            weight = self.selections.times_factors(found)
            if weight is not None and self.weights.forms[weight.name].blocks:
                return [b.mul(x, self._value(weight)) for x in self._in_blocks(left, weight)]
            return [self._in_bf16(left, right, found)]
        weight = self.selections.of(found.right)
        if self.recipe.activations == "float32" or (weight and self.recipe.is_exact(weight.name)):
            return [b.mul(left, right)]
        return [self._in_bf16(left, right, found)]

    def _in_bf16(self, left: int, right: int, found: Contraction) -> int:
        b, weight = self.builder, self.selections.of(found.right)
        value = right if weight is None else self._value(weight)  # not widened, if it is stored in bf16
        return b.mul(rounded_bf16(b, left), f32(b, rounded_bf16(b, value)))

    def _in_blocks(self, left: int, weight: Selection) -> list[int]:
        """Activations rounded to codes, a scale for each block, as a sum of so many terms."""
        b = self.builder
        for factor in weight.factors:
            left = b.mul(left, self.new[factor])
        axes = BlockAxes.of(b, self.weights.dims[weight.name][-1], self.recipe.block_of(weight.name))
        cut = axes.cut(b, f32(b, left), weight.along)
        if self.recipe.is_exact(weight.name):
            rounded = rounded_16_bits(b, cut, axes.inside)
        elif self.recipe.asymmetric:
            rounded = (rounded_asymmetric(b, cut, axes.inside),)
        else:
            rounded = (rounded_symmetric(b, cut, axes.inside),)
        return [axes.join(b, x, weight.along) for x in rounded]
