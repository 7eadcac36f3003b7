"""Putting an engine together: checkpoint, model, memory, executor. The one place where the parts meet."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.errors import Unsupported
from headrace.compiler.native.toolchain import ToolchainError
from headrace.engine.constraint import ConstraintFactory
from headrace.engine.engine import Engine
from headrace.engine.messages import ReplicaInfo
from headrace.errors import InvalidInput
from headrace.fleet.options import EngineOptions
from headrace.memory.page_form import PageForm
from headrace.memory.slabs import common_slab
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.memory.tiered_memory import TieredMemory, tier_groups
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.siblings import trim_siblings
from headrace.memory.tiers.store import TierLimits, TierStore, own_folder
from headrace.models.checkpoint import Checkpoint
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import recipe_named
from headrace.runtime.batch import Executor
from headrace.runtime.state_layout import PAGE_TOKENS

MiB = 1 << 20
LONGEST = 1 << 31  # tokens of a sequence
DEFAULT_KV_SHARE = 0.25  # of the memory that is free once the weights are loaded
SMALLEST_KV = 256 * MiB
LARGEST_DEFAULT_KV = 4096 * MiB
REHEARSED = 1024  # tokens
HOST_STAGE = 256 * MiB  # of host memory, for what goes to disk

Arena = npt.NDArray[np.uint8]

# Called with what is being done, how much of it is done, and how much there is (0: nobody knows).
Progress = Callable[[str, int, int], None]

log = logging.getLogger(__name__)

# Reasons not to compile a model that is fine otherwise.
NOT_COMPILED = (ToolchainError, Unsupported, CannotEmit)


def build_engine(
    options: EngineOptions, constraint_for: ConstraintFactory, progress: Progress | None = None
) -> tuple[Engine, ReplicaInfo]:
    """Load a model and build the engine that runs it.

    Args:
        options: How to run it.
        constraint_for: Makes what binds a sample: stop strings, a grammar.
        progress: Called while the model loads with (what is being done, how much is done, how much there is).

    Raises:
        CheckpointError: The file cannot be used.
        InvalidInput: The KV memory or the context is too small or too large.
    """
    checkpoint = open_checkpoint(Path(options.path))
    spec = load_spec(checkpoint, options.name)
    prepared = _prepare(options, checkpoint, spec, progress or (lambda what, done, total: None))
    kv_bytes = options.kv_memory if options.kv_memory is not None else _default_kv_bytes()
    memory = _memory(options, spec, prepared.forms, kv_bytes)
    kv_tokens = memory.longest(LONGEST, options.max_batch_tokens)
    context = _context_length(options.context_length, spec.context_length, kv_tokens)
    arena = np.zeros(memory.arena.nbytes, np.uint8)
    engine = Engine(
        spec,
        prepared.build(memory, arena, context),
        memory,
        options.limits(),
        _tiers(options, checkpoint, prepared, memory, arena),
        context_length=context,
        constraint_for=constraint_for,
        jump_forward=options.jump_forward,
    )
    if engine.scheduler.tiers.present:  # they are used where that is faster, which must be known from the start
        engine.rehearse(min(REHEARSED, context - 8, kv_tokens - 8))
    info = ReplicaInfo(
        model=options.name,
        executor=prepared.name,
        threads=prepared.threads,
        context_length=context,
        kv_tokens=kv_tokens,
        page_tokens=PAGE_TOKENS,
        pages=memory.pools[0].capacity,
        vocab_size=spec.vocab_size,
        max_running=options.max_running,
        hidden_size=spec.hidden_size,
    )
    return engine, info


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A model in memory, before there is memory for sequences.

    Attributes:
        name: Of the executor, for people.
        threads: That it computes with.
        forms: How the pages of each state group lie in memory.
        numerics: What the bytes of pages depend on beside the weights and their layout.
        build: Makes the executor, given the memory, its bytes, and the most tokens of a sequence.
    """

    name: str
    threads: int
    forms: tuple[PageForm, ...]
    numerics: str
    build: Callable[[StateMemory, Arena, int], Executor]


def _prepare(options: EngineOptions, checkpoint: Checkpoint, spec: ModelSpec, progress: Progress) -> _Prepared:
    if options.executor == "eager" or (options.executor == "auto" and options.dtype != "float32"):
        return _prepare_eager(options, checkpoint, spec, progress)
    try:
        return _prepare_compiled(options, checkpoint, spec, progress)
    except NOT_COMPILED as error:
        if options.executor == "compiled":
            raise
        log.warning("not compiled, running with PyTorch, which is several times slower: %s", error)
        return _prepare_eager(options, checkpoint, spec, progress)


def _prepare_eager(options: EngineOptions, checkpoint: Checkpoint, spec: ModelSpec, progress: Progress) -> _Prepared:
    # PyTorch's threads wait for each other by spinning, which collapses where other processes want the cores too;
    # sleeping at once costs a third of the speed where none does (docs/benchmarks.md). So: spin shortly, then sleep.
    # The setting (of GNU's OpenMP) is read when PyTorch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Imported late: PyTorch takes a second, and whoever only asks for help should not wait for it.
    from headrace.models.loading import load_model
    from headrace.runtime.artifacts import code_digest
    from headrace.runtime.eager import EagerExecutor, set_threads, torch_dtype, torch_version

    threads = set_threads(options.threads or os.cpu_count() or 1)
    model = load_model(checkpoint, torch_dtype(options.dtype), functools.partial(progress, "copying weights"))
    layouts = EagerExecutor.layouts_for(spec, torch_dtype(options.dtype))

    def build(memory: StateMemory, arena: Arena, context: int) -> Executor:
        return EagerExecutor(
            model,
            spec,
            layouts,
            state=arena,
            forms=[group.form for group in memory.groups],
            slots=options.max_running,
            context_length=context,
        )

    name = f"eager {options.dtype}"
    # Other code may add in another order.
    numerics = f"{name} pytorch {torch_version()} {code_digest(('models', 'runtime'))}"
    return _Prepared(name, threads, tuple(layout.form for layout in layouts), numerics, build)


def _prepare_compiled(options: EngineOptions, checkpoint: Checkpoint, spec: ModelSpec, progress: Progress) -> _Prepared:
    from headrace.compiler.native.cpu import cpu_features
    from headrace.runtime.artifacts import program_key
    from headrace.runtime.compiled import CompiledExecutor
    from headrace.runtime.loaded_model import load_compiled

    recipe = recipe_named(options.recipe, options.numerics)
    loaded = load_compiled(checkpoint, spec, recipe, options.threads, progress)

    def build(memory: StateMemory, arena: Arena, context: int) -> Executor:
        return CompiledExecutor(
            loaded,
            spec,
            state=arena,
            slots=options.max_running,
            context_length=context,
            batch_tokens=max(options.max_batch_tokens, options.max_running),
        )

    name = f"compiled {recipe.name}"
    # Other code, or another instruction set, may add in another order.
    numerics = f"{program_key(checkpoint, spec, recipe)} {' '.join(cpu_features().compile_flags())}"
    return _Prepared(name, loaded.pool.threads, (loaded.model.pages,), numerics, build)


def _tiers(
    options: EngineOptions, checkpoint: Checkpoint, prepared: _Prepared, memory: StateMemory, arena: Arena
) -> TieredMemory | None:
    if not options.host_tier and options.disk_tier is None:
        return None
    forms = [group.form for group in memory.groups]
    layout = repr([(group.by_token, group.window, group.form.runs) for group in memory.groups])
    limits = TierLimits(
        host_bytes=options.host_tier or HOST_STAGE,
        folder=None if options.disk_tier is None else Path(options.disk_tier),
        disk_bytes=options.disk_tier_size,
    )
    identity = Identity(checkpoint.content_id(), f"{PAGE_TOKENS} tokens {layout}", prepared.numerics)
    if limits.folder is not None:
        try:
            Files(limits.folder).make()
        except OSError as error:
            raise InvalidInput(f"{limits.folder} cannot be made: {error.strerror}", field="disk_tier") from error
        trim_siblings(own_folder(limits.folder, identity), limits.disk_bytes)
    ended = threading.Event()
    try:
        store = TierStore(
            tier_groups(memory.groups),
            PAGE_TOKENS,
            ArenaBytes(arena, forms),
            identity,
            limits,
            wake=ended.set,
        )
    except MemoryError as error:
        raise InvalidInput(f"{limits.host_bytes:,} bytes of memory cannot be had", field="host_tier") from error
    return TieredMemory(memory, store, ended)


def _memory(options: EngineOptions, spec: ModelSpec, forms: Sequence[PageForm], nbytes: int) -> StateMemory:
    most = None
    if len(forms) > 1:
        slab = common_slab([form.page_bytes for form in forms], nbytes)
        forms = [form.in_slabs(slab) for form in forms]
    else:  # as many pages as asked for, also where they do not fill the last slab
        most = nbytes // forms[0].page_bytes
        nbytes = -(-most // forms[0].slab_pages) * forms[0].slab_bytes
    return StateMemory(
        [MemoryGroup(g.by_token, form, g.window) for g, form in zip(spec.state_groups, forms, strict=True)],
        nbytes=nbytes,
        page_tokens=PAGE_TOKENS,
        most_pages=None if most is None else [most],
        prefix_cache=options.prefix_cache,
        poison=options.debug,
    )


def _context_length(wanted: int | None, model: int, kv_tokens: int) -> int:
    if wanted is not None and wanted > model:
        raise InvalidInput(f"the model's context is {model} tokens, {wanted} are too many", field="context_length")
    context = min(wanted or model, kv_tokens)
    if context < 2 or (wanted is not None and context < wanted):
        raise InvalidInput(
            f"the KV memory holds {kv_tokens} tokens, too few for a context of {wanted or model}; give it more",
            field="kv_memory",
        )
    return context


def _default_kv_bytes() -> int:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else SMALLEST_KV * 4
    return int(min(max(free * DEFAULT_KV_SHARE, SMALLEST_KV), LARGEST_DEFAULT_KV))
