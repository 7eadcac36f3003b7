"""How soon the first token comes when the prompt's prefix is nowhere, in the arena, in host memory, or on disk."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import msgspec
import numpy as np

from headrace.engine.engine import Engine
from headrace.engine.messages import Generate
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import EngineError
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions

EVERYTHING = 1 << 62  # bytes
FIRST_TOKEN = 10


class FirstTokens(msgspec.Struct, frozen=True):
    """Medians, in seconds from the request to its first token.

    Attributes:
        tokens: Of the prompt.
        computed: The whole prompt is computed.
        arena: Its prefix is in the arena.
        host: Its prefix is in host memory.
        disk: Its prefix is on disk, a new process's first request; the files may be in the system's memory.
    """

    tokens: int
    computed: float
    arena: float
    host: float
    disk: float


def first_tokens(path: str, folder: Path, *, tokens: int, repeat: int) -> FirstTokens:
    """Measure a model.

    Args:
        path: The model.
        folder: Where the disk tier goes.
        tokens: Of a prompt.
        repeat: Prompts; the median counts.

    Raises:
        EngineError: A prefix was not found where it should have been.
    """
    options = EngineOptions(
        path=path, name="bench", max_step_ms=0, host_tier=2 << 30, disk_tier=str(folder), context_length=tokens + 8
    )
    engine, info = build_engine(options, lambda params: None)
    prompts = np.random.default_rng(0).integers(FIRST_TOKEN, info.vocab_size, (repeat, tokens)).astype("<i4")
    times: dict[str, list[float]] = {}
    for name in ("computed", "arena", "host"):
        times[name] = []
        for prompt in prompts:
            if name == "host":
                engine.memory.tree.evict(EVERYTHING)
            times[name].append(_first_token(engine, prompt, found=name != "computed"))
    engine.close(60.0)
    engine, _ = build_engine(options, lambda params: None)
    times["disk"] = [_first_token(engine, prompt, found=True) for prompt in prompts]
    engine.close(60.0)
    return FirstTokens(tokens, **{name: statistics.median(seconds) for name, seconds in times.items()})


def _first_token(engine: Engine, prompt: np.ndarray[tuple[int], np.dtype[np.int32]], *, found: bool) -> float:
    began, cached = time.monotonic(), 0
    engine.add(Generate(0, prompt.tobytes(), SamplingParams(temperature=0, max_tokens=1)))
    seconds = 0.0
    while engine.has_work:
        for delta in engine.step():
            seconds, cached = time.monotonic() - began, delta.cached_tokens or 0
    if found != (cached > len(prompt) // 2):
        raise EngineError(f"{cached} of {len(prompt)} tokens were found")
    return seconds
