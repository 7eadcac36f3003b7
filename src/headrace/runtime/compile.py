"""A checkpoint to a compiled program: captured, rewritten, put into a recipe's numbers; then scheduled, written as C.

The first half needs PyTorch and some seconds, and gives a ``PreparedModel``; the second a search does often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.codegen.program import ProgramSource, generate
from headrace.compiler.constants import fold_constants
from headrace.compiler.egraph import cheapest
from headrace.compiler.errors import Unsupported
from headrace.compiler.interpret import bind
from headrace.compiler.ir import BITS, DType, Graph, Part, Program
from headrace.compiler.rules.climb import climb
from headrace.compiler.rules.cost import CostModel
from headrace.compiler.rules.facts import INDEX
from headrace.compiler.rules.forms import ForRecipe, ForSchedule
from headrace.compiler.rules.optimize import explore
from headrace.compiler.rules.program import Assumptions, Blocks
from headrace.compiler.schedule.plan import RAGGED_TILE
from headrace.compiler.schedule.tiles import SLAB_PAGES
from headrace.compiler.search.choices import Program as Unscheduled
from headrace.compiler.search.choices import schedule
from headrace.compiler.search.genes import DEFAULT, Genome
from headrace.memory.page_form import PageForm
from headrace.models.checkpoint import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.quant.apply import apply_recipe
from headrace.quant.recipes import Recipe
from headrace.quant.weights import WeightSource, load_weight, stored_formats
from headrace.runtime.state_layout import PAGE_TOKENS

# What costs are counted with: a step that decodes some sequences and prefills one.
TYPICAL = {"T": 64, "B": 8, "S": 4096, "P": 256, "N": 1024, "R": 8}

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model's program before it is scheduled, and how its weights are got.

    Attributes:
        program: The graphs of a step.
        hidden: The graph of the vectors that logits are made of, to run after those where such are wanted.
        positions: Positions of a block of attention; a step has to say how many blocks its longest sequence has.
        extents: Of each weight, the lengths of its axes.
        made: Weights that are computed from others, and how.
        sources: How the others are got from the checkpoint.
        constants: Weights that no checkpoint holds, such as rope's frequencies.
        rules: How often each rewrite rule shows in the result.
    """

    program: Unscheduled
    hidden: Part
    positions: int
    extents: Mapping[str, Mapping[str, int]]
    made: Mapping[str, Graph]
    sources: Mapping[str, WeightSource]
    constants: Mapping[str, npt.NDArray[Any]]
    rules: Mapping[str, int]

    def load(self, checkpoint: Checkpoint) -> Callable[[str], npt.NDArray[Any]]:
        """How a stored weight is read by its full name."""
        repeats = {r for part in self.program.parts for r in part.repeats}
        by_name = {bind(name, r): (source, r) for name, source in self.sources.items() for r in repeats}

        def read(name: str) -> npt.NDArray[Any]:
            if name in self.constants:
                return self.constants[name]
            source, repeat = by_name[name]
            return load_weight(checkpoint, source, repeat)

        return read


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model's program.

    Attributes:
        prepared: What it was before it was scheduled.
        source: The C file and what it is called with: the parts of a step, and ``hidden`` behind them.
        pages: How pages of state lie in a slab.
        state_offsets: First byte in a slab of each state, repetition by repetition.
        ragged_tile: Most rows of a tile whose rows must be of one segment.
    """

    prepared: PreparedModel
    source: ProgramSource
    pages: PageForm
    state_offsets: tuple[int, ...]
    ragged_tile: int


@dataclass(slots=True)
class _Work:
    rules: dict[str, int] = field(default_factory=dict)
    extents: dict[str, dict[str, int]] = field(default_factory=dict)
    made: dict[str, Graph] = field(default_factory=dict)


def prepare_model(
    checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, report: Report = lambda what: None
) -> PreparedModel:
    """Capture a model, rewrite it, and put it into a recipe's numbers. PyTorch is imported.

    Args:
        checkpoint: The model.
        spec: Its dimensions.
        recipe: The numbers to compute with.
        report: Called with what is done next.

    Raises:
        Unsupported: The model cannot be captured, or keeps other state than keys and values of all tokens.
    """
    from headrace.compiler.capture import capture_model
    from headrace.models.loading import skeleton

    for group in spec.state_groups:
        if group.kind != "full":
            why = f"a state of kind {group.kind!r} has no pages in compiled programs yet"
            raise Unsupported("state", f"layer {group.layers[0]} of {spec.family}", why)
    report("capturing the model")
    captured = capture_model(skeleton(checkpoint))
    work = _Work()
    assumptions = Assumptions(indices={"positions": "position"}, blocks=(Blocks("S", recipe.positions, "NB"),))
    report("rewriting")
    every = (*captured.program.parts, *captured.apart)
    plain = Program(tuple(_rewritten(part, assumptions, work, prepare=True) for part in every))
    prepared = apply_recipe(plain, recipe, stored_formats(checkpoint), captured.dims)
    maxima = {"NB": -(-spec.context_length // recipe.positions), "P": -(-spec.context_length // PAGE_TOKENS)}
    parts = []
    for part in prepared.program.parts:
        folded = fold_constants(_rewritten(part, assumptions, work).graph)
        work.made |= folded.made
        work.extents |= {
            name: {a: int(folded.graph.axes[a].extent) for a in declared.type.axes}
            for name, declared in folded.graph.inputs.items()
            if declared.kind == "weight"
        }
        parts.append(Part(part.name, folded.graph, part.repeats))
    *step, hidden = parts
    program = Unscheduled(tuple(step), maxima, PAGE_TOKENS)
    return PreparedModel(
        program, hidden, recipe.positions, work.extents, work.made, prepared.sources, captured.constants, work.rules
    )


def schedule_model(prepared: PreparedModel, genome: Genome = DEFAULT) -> CompiledModel:
    """Schedule a model and write its C file.

    Args:
        prepared: The model.
        genome: The choices of the schedule; the default ones if empty.

    Raises:
        CannotEmit: There is no code for this schedule.
    """
    apart = replace(prepared.program, parts=(prepared.hidden,))
    planned = [*schedule(prepared.program, genome), *schedule(apart)]
    source = generate(planned)
    pages, offsets = slab_of(source.arrays.states.values())
    ragged = [stage.row_tile for _, plan in planned for stage in plan.stages if stage.ragged]
    return CompiledModel(prepared, source, pages, offsets, max(ragged, default=RAGGED_TILE))


def _rewritten(part: Part, assumptions: Assumptions, work: _Work, prepare: bool = False) -> Part:
    explored = explore(part.graph, assumptions)
    sizes = dict(TYPICAL)
    for cut in assumptions.blocks:
        sizes = cut.of(sizes)
    model = CostModel(explored.graph, sizes)
    cost = ForRecipe(model) if prepare else ForSchedule(model)
    choice = climb(
        explored.graph, cheapest(explored.space, cost), cost, lambda eclass: explored.graph.facts(eclass).level > INDEX
    )
    for rule, count in explored.reasons(choice).items():
        work.rules[rule] = work.rules.get(rule, 0) + count
    return Part(part.name, explored.read(choice), part.repeats)


def slab_of(arrays: Iterable[Array]) -> tuple[PageForm, tuple[int, ...]]:
    """How the pages of a program's states lie in a slab, and where in it each state of each repetition begins."""
    states = list(arrays)
    repetitions = max((len(state.repeats) for state in states), default=1)
    shares = [_share(state) for state in states] * repetitions
    offsets = np.cumsum([0, *(SLAB_PAGES * count * size for count, size in shares)])
    return PageForm.of(SLAB_PAGES, shares), tuple(int(x) for x in offsets[:-1])


def _share(state: Array) -> tuple[int, int]:
    """In how many places of a slab a page of one repetition's state lies, and with how many bytes in each."""
    pieces = state.layout.pieces
    beside = next(n for n, piece in enumerate(pieces) if n and piece.axis == pieces[0].axis)
    places, inside = (math.prod(p.extent for p in some) for some in (pieces[1:beside], pieces[beside + 1 :]))
    return places, inside * BITS[DType(state.dtype)] // 8
