"""What a recipe loses: a compiled model's logits beside those of PyTorch in float32, on a text.

Both see the same tokens, in pieces of one length that know nothing of each other; the second half of each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.memory.page_form import PageForm
from headrace.models.checkpoint import Checkpoint
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.models.spec import ModelSpec
from headrace.quant.quality import AIM, GATES, Comparison, Quality, scored_positions
from headrace.quant.recipes import Recipe, recipe_named
from headrace.runtime.state_layout import PAGE_TOKENS
from headrace.text.tokenizer import load_tokenizer

CONTEXT = 512
TOKENS = 20_000

Tokens = npt.NDArray[np.int32]
# Called with (pieces compared, pieces in all).
Progress = Callable[[int, int], None]


class Scorer(Protocol):
    """Computes logits of one sequence."""

    def prompt_logits(self, tokens: Tokens, rows: range) -> Iterator[npt.NDArray[np.float32]]:
        """See the executors."""
        ...


class QualityResult(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        model: Its path.
        recipe: The numbers of the candidate.
        numerics: Their id.
        tokens: How many of the text were computed.
        quality: The figures.
        failures: What the recipe's gate finds too much; empty if it passes.
        aim: What the aim, half of the gate of ``int8``, finds too much.
    """

    model: str
    recipe: str
    numerics: str
    tokens: int
    quality: Quality
    failures: list[str]
    aim: list[str]


def measure_quality(
    path: str,
    text: str,
    *,
    recipe: str,
    numerics: str = "invariant",
    tokens: int = TOKENS,
    context: int = CONTEXT,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> QualityResult:
    """Compare.

    Args:
        path: A ``.gguf`` file or a folder of safetensors.
        text: Any text in the model's language.
        recipe: The candidate's numbers.
        numerics: What is promised of them; see ``recipe_named``.
        tokens: How many tokens of the text to compute.
        context: Tokens of a piece.
        threads: Threads of both; one a core by default.
        progress: Called after each piece.

    Raises:
        InvalidInput: An option cannot be used, or the text is too short.
        CheckpointError: The model cannot be used.
        HeadraceError: It cannot be compiled.
    """
    numbers = recipe_named(recipe, numerics)
    checkpoint = open_checkpoint(Path(path))
    spec = load_spec(checkpoint, path)
    if not 4 <= context <= spec.context_length:
        raise InvalidInput(f"must be from 4 to {spec.context_length}, got {context}", field="context")
    pieces = _pieces(checkpoint, text, tokens, context)
    candidate = _compiled(checkpoint, spec, numbers, context, threads)
    reference = _eager(checkpoint, spec, context, threads)
    scored = scored_positions(context)
    rows = range(scored.start, scored.stop)
    comparison = Comparison()
    for done, piece in enumerate(pieces, 1):
        following = piece[scored.start + 1 : scored.stop + 1]
        at = 0
        for theirs, ours in zip(
            reference.prompt_logits(piece, rows), candidate.prompt_logits(piece, rows), strict=True
        ):
            comparison.add(theirs, ours, following[at : at + len(ours)])
            at += len(ours)
        progress(done, len(pieces))
    quality = comparison.result()
    gate = GATES[numbers.activations]
    return QualityResult(
        path,
        numbers.name,
        numbers.numerics_id,
        len(pieces) * context,
        quality,
        gate.failures(quality),
        AIM.failures(quality),
    )


def _pieces(checkpoint: Checkpoint, text: str, tokens: int, context: int) -> list[Tokens]:
    found = np.array(load_tokenizer(checkpoint.tokenizer).encode(text), np.int32)[:tokens]
    pieces = [found[at : at + context] for at in range(0, len(found) - context + 1, context)]
    if not pieces:
        raise InvalidInput(f"the text has {len(found)} tokens; at least {context} are needed", field="text")
    return pieces


def _compiled(checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, context: int, threads: int | None) -> Scorer:
    from headrace.runtime.compiled import CompiledExecutor
    from headrace.runtime.loaded_model import load_compiled

    loaded = load_compiled(checkpoint, spec, recipe, threads)
    state = _memory(context, loaded.model.pages)
    return CompiledExecutor(loaded, spec, state=state, slots=1, context_length=context, batch_tokens=context)


def _eager(checkpoint: Checkpoint, spec: ModelSpec, context: int, threads: int | None) -> Scorer:
    from headrace.models.loading import load_model
    from headrace.runtime.eager import EagerExecutor, set_threads, torch_dtype

    if threads is not None:
        set_threads(threads)
    model = load_model(checkpoint, torch_dtype("float32"))
    layouts = EagerExecutor.layouts_for(spec, torch_dtype("float32"))
    form = layouts[0].form
    state = _memory(context, form)
    return EagerExecutor(
        model,
        spec,
        layouts,
        state=state,
        forms=(form,),
        slots=1,
        context_length=context,
    )


def _memory(context: int, form: PageForm) -> npt.NDArray[np.uint8]:
    pages = -(-context // PAGE_TOKENS)
    return np.zeros(-(-pages // form.slab_pages) * form.slab_bytes, np.uint8)
