"""How fast the engine is: prefill and decode, through scheduler and sampler.

The rates are defined as those of the peers that we compare with: ``prefill_n`` is n over the time of a prompt of n
random tokens and one drawn token; ``decode_b`` is what b sequences draw a second after prompts of 128 tokens, as the
difference between drawing 65 and drawing one. Nothing is shared between prompts, and each time is the best of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.engine.engine import Engine
from headrace.engine.messages import Generate, ReplicaInfo, TokenDelta
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import EngineError, InvalidInput
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.quant.recipes import DEFAULT as DEFAULT_RECIPE
from headrace.runtime.state_layout import PAGE_TOKENS, state_layouts

PREFILL = {f"prefill_{n}": n for n in (128, 512, 2048)}
DECODE = {f"decode_b{n}": n for n in (1, 8, 32)}
KEYS = (*PREFILL, *DECODE)
DECODE_PROMPT = 128
DECODE_TOKENS = 64
LARGEST_ITEM = 4  # bytes of an element of the KV cache, at most
FIRST_TOKEN = 10  # below are control tokens in most vocabularies

# Called with (key, its rate).
Report = Callable[[str, float], None]


class EngineRates(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        info: What ran.
        rates: Key, such as ``decode_b8``, to tokens a second.
        outside_executor: Key to the share of the steps' time that was spent outside the executor: scheduling, page
            keeping, ends. For decode in its longest run.
        skipped: Key to why it was not measured.
    """

    info: ReplicaInfo
    rates: dict[str, float]
    outside_executor: dict[str, float]
    skipped: dict[str, str]


@dataclass(slots=True)
class Bench:
    """An engine under measurement.

    Attributes:
        engine: The engine; nothing else may run on it.
        info: What it is.
        random: Draws the prompts.
        outside: Share of the last run's time outside the executor.
    """

    engine: Engine
    info: ReplicaInfo
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    outside: float = 0.0
    _next: int = 0

    def run(self, batch: int, prompt_tokens: int, new_tokens: int) -> float:
        """Seconds that ``batch`` random prompts take, to so many drawn tokens each.

        Raises:
            EngineError: The engine failed on one.
        """
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        low = min(FIRST_TOKEN, self.info.vocab_size - 1)
        prompts = self.random.integers(low, self.info.vocab_size, (batch, prompt_tokens)).astype("<i4")
        requests = [Generate(self._next + i, prompt.tobytes(), params) for i, prompt in enumerate(prompts)]
        self._next += batch
        drawn, inside, steps = 0, 0.0, self.engine.stats().step
        begin = time.perf_counter()
        for request in requests:
            _check(self.engine.add(request))
        while self.engine.has_work:
            deltas = self.engine.step()
            _check(deltas)
            drawn += sum(len(delta.tokens) for delta in deltas)
            stats = self.engine.stats()
            inside += stats.forward_seconds if stats.step > steps else 0.0
            steps = stats.step
        seconds = time.perf_counter() - begin
        if drawn != batch * new_tokens:
            raise EngineError(f"the engine drew {drawn} tokens where {batch * new_tokens} were asked for")
        self.outside = 1 - inside / seconds
        return seconds

    def best(self, repeat: int, batch: int, prompt_tokens: int, new_tokens: int) -> tuple[float, float]:
        """The shortest of several runs, and its share outside the executor."""
        return min((self.run(batch, prompt_tokens, new_tokens), self.outside) for _ in range(repeat))


def bench_engine(
    path: str,
    name: str,
    *,
    executor: str = "auto",
    recipe: str = DEFAULT_RECIPE,
    numerics: str = "invariant",
    dtype: str = "float32",
    threads: int | None = None,
    max_batch_tokens: int = 512,
    repeat: int = 3,
    only: Collection[str] = (),
    report: Report = lambda key, rate: None,
) -> EngineRates:
    """Load a model and measure it.

    Args:
        path: A ``.gguf`` file or a folder of safetensors.
        name: What to call it.
        executor: Who computes, as in ``EngineOptions``.
        recipe: In which numbers.
        numerics: What is promised of them, as in ``EngineOptions``.
        dtype: Element type of the eager executor.
        threads: Threads of the executor; None is one a core.
        max_batch_tokens: Most tokens of a step.
        repeat: Runs of each kind, of which the best counts.
        only: The keys to measure; empty is all.
        report: Called after each.

    Raises:
        InvalidInput: An option cannot be used.
        CheckpointError: The model cannot be used.
        EngineError: The engine failed.
    """
    wanted = _wanted(only)
    if repeat < 1:
        raise InvalidInput(f"must be at least 1, got {repeat}", field="repeat")
    options = EngineOptions(
        path=path,
        name=name,
        executor=executor,  # type: ignore[arg-type]
        recipe=recipe,
        numerics=numerics,  # type: ignore[arg-type]
        dtype=dtype,  # type: ignore[arg-type]
        threads=threads,
        kv_memory=_kv_bytes(path),
        max_batch_tokens=max_batch_tokens,
        max_step_ms=0,  # it would trade throughput for even gaps between tokens
        prefix_cache=False,
    )
    engine, info = build_engine(options, lambda params: None)
    return measure(Bench(engine, info), wanted, repeat, report)


def measure(bench: Bench, wanted: Collection[str], repeat: int, report: Report) -> EngineRates:
    """Measure an engine; see ``bench_engine``."""
    rates: dict[str, float] = {}
    outside: dict[str, float] = {}
    skipped: dict[str, str] = {}
    bench.run(1, min(64, bench.info.context_length - 8), 8)  # first touches of weights and pages are paid here
    for key in wanted:
        needed = PREFILL[key] + 1 if key in PREFILL else DECODE_PROMPT + DECODE_TOKENS + 1
        if needed > bench.info.context_length:
            skipped[key] = f"needs a context of {needed} tokens; the model has {bench.info.context_length}"
            continue
        rates[key], outside[key] = (
            _prefill(bench, PREFILL[key], repeat) if key in PREFILL else _decode(bench, DECODE[key], repeat)
        )
        report(key, rates[key])
    return EngineRates(bench.info, rates, outside, skipped)


def _prefill(bench: Bench, tokens: int, repeat: int) -> tuple[float, float]:
    seconds, outside = bench.best(repeat, 1, tokens, 1)
    return tokens / seconds, outside


def _decode(bench: Bench, batch: int, repeat: int) -> tuple[float, float]:
    long, outside = bench.best(repeat, batch, DECODE_PROMPT, DECODE_TOKENS + 1)
    short, _ = bench.best(repeat, batch, DECODE_PROMPT, 1)
    return batch * DECODE_TOKENS / (long - short), outside


def _wanted(only: Collection[str]) -> tuple[str, ...]:
    unknown = [key for key in only if key not in KEYS]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is not measured; choose from {', '.join(KEYS)}", field="only")
    return tuple(key for key in KEYS if not only or key in only)


def _kv_bytes(path: str) -> int:
    """Room for the largest run, so that no page is ever evicted or waited for."""
    spec = load_spec(open_checkpoint(path), path)
    pages_a_sequence = -(-(DECODE_PROMPT + DECODE_TOKENS + 1) // PAGE_TOKENS) + 1
    pages = max(max(DECODE.values()) * pages_a_sequence, -(-max(PREFILL.values()) // PAGE_TOKENS) + 2)
    return sum(layout.page_bytes for layout in state_layouts(spec, LARGEST_ITEM)) * (pages + 1)


def _check(deltas: Collection[TokenDelta]) -> None:
    for delta in deltas:
        finish = delta.finish
        if finish is not None and finish.reason == "error":
            raise EngineError(f"the engine failed: {finish.message}")
