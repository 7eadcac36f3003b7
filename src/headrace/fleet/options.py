"""``EngineOptions``: how a model is to be run, checked before anything is loaded."""

from __future__ import annotations

import math
import os
from typing import Literal, cast, get_args

import msgspec

from headrace.engine.objective import Objective, aims
from headrace.engine.ordering import POLICIES, PolicyName
from headrace.engine.scheduler import SchedulerLimits
from headrace.errors import InvalidInput
from headrace.quant.recipes import DEFAULT as DEFAULT_RECIPE
from headrace.quant.recipes import Numerics, recipe_named

ExecutorName = Literal["auto", "compiled", "eager"]
EXECUTORS: tuple[ExecutorName, ...] = ("auto", "compiled", "eager")
EXECUTOR_VARIABLE = "HEADRACE_EXECUTOR"


def default_executor() -> ExecutorName:
    """The executor that the environment asks for, else auto."""
    return cast(ExecutorName, os.environ.get(EXECUTOR_VARIABLE) or "auto")


_RANGES = (
    ("threads", 1, 1024),
    ("context_length", 2, 2**31 - 1),
    ("max_running", 1, 65_536),
    ("max_batch_tokens", 1, 2**24),
    ("host_tier", 0, 2**60),
    ("disk_tier_size", 0, 2**60),
)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a model.

    Attributes:
        path: A ``.gguf`` file or a folder of safetensors.
        name: The name that clients ask for.
        executor: ``compiled``: native code made for the model; ``eager``: the PyTorch reference; ``auto``: compiled
            where there is a C compiler and the model can be compiled, else eager, with a warning; eager too if another
            ``dtype`` than float32 is asked for. By default what the environment variable ``HEADRACE_EXECUTOR`` says,
            else auto.
        dtype: Element type of weights, activations and KV cache, of the eager executor.
        recipe: The numbers that the compiled executor computes with (see ``headrace.quant.recipes``).
        numerics: Of the compiled executor: what is promised of them (see ``recipe_named``).
        threads: Threads of the executor; None is one a core.
        context_length: Most tokens of a sequence; None is what model and KV memory allow.
        kv_memory: Bytes of KV memory; None is a quarter of the free memory, between 256 MiB and 4 GiB.
        max_running: Sequences that run at once.
        max_batch_tokens: Most tokens of a step.
        objective: What to run for; see ``engine.objective``.
        slo_ttft_ms: Service level: to the first token.
        slo_itl_ms: Service level: between two tokens.
        policy: Who comes first; None: what the objective asks for.
        tenant_weights: Shares of tenants, for the policy ``fair``.
        max_step_ms: Longest step wanted while sequences decode; 0 bounds a step by its tokens alone, None leaves it to
            the objective.
        prefix_cache: Keep computed prefixes for later requests.
        host_tier: Bytes of host memory for prefixes that the KV memory gives up; 0: none. Of use where the KV memory
            is another device's, and as the way to the disk.
        disk_tier: Folder for them; None: there is none.
        disk_tier_size: Most bytes of all files there.
        tool_format: How the model writes tool calls and reasoning: the name of a format or the path of its file; None:
            what its chat template shows.
        jump_forward: Take tokens that a grammar leaves no choice about without drawing them.
        step_log: File to which a replica appends each step, as a trace; None writes none.
        debug: Poison freed pages and check the invariants when idle.
    """

    path: str
    name: str
    executor: ExecutorName = msgspec.field(default_factory=default_executor)
    dtype: Literal["float32", "bfloat16"] = "float32"
    recipe: str = DEFAULT_RECIPE
    numerics: Numerics = "invariant"
    threads: int | None = None
    context_length: int | None = None
    kv_memory: int | None = None
    max_running: int = 64
    max_batch_tokens: int = 512
    objective: Objective = "throughput"
    slo_ttft_ms: float = 1000.0
    slo_itl_ms: float = 100.0
    policy: PolicyName | None = None
    tenant_weights: dict[str, float] = {}
    max_step_ms: float | None = None
    prefix_cache: bool = True
    host_tier: int = 0
    disk_tier: str | None = None
    disk_tier_size: int = 10 << 30
    jump_forward: bool = True
    tool_format: str | None = None
    step_log: str | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise InvalidInput(f"must be one of {', '.join(EXECUTORS)}, got {self.executor!r:.80}", field="executor")
        recipe_named(self.recipe, self.numerics)
        self._check_executor()
        for field, low, high in _RANGES:
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise InvalidInput(f"must be from {low} to {high}, got {value}", field=field)
        if self.max_step_ms is not None and not 0 <= self.max_step_ms < math.inf:
            raise InvalidInput(f"must be a number of milliseconds, got {self.max_step_ms}", field="max_step_ms")
        for field in ("slo_ttft_ms", "slo_itl_ms"):
            if not 0 < getattr(self, field) < math.inf:
                raise InvalidInput(f"must be a positive number, got {getattr(self, field)}", field=field)
        for name, weight in self.tenant_weights.items():
            if not 0 < weight < math.inf:
                raise InvalidInput(f"the weight of {name!r:.80} must be positive, got {weight}", field="tenant_weights")
        self._check_choices()
        self._check_use()

    def _check_choices(self) -> None:
        for field, known in (("objective", get_args(Objective)), ("policy", (None, *POLICIES))):
            value = getattr(self, field)
            if value not in known:
                raise InvalidInput(f"must be one of {', '.join(filter(None, known))}, got {value!r:.80}", field=field)

    def _check_use(self) -> None:
        """That nothing is asked which would have no effect."""
        if self.tenant_weights and self.limits().policy != "fair":
            raise InvalidInput("shares are of the policy fair", field="tenant_weights")
        for field in ("host_tier", "disk_tier"):
            if getattr(self, field) and not self.prefix_cache:
                raise InvalidInput("keeps prefixes, of which there are none without a prefix cache", field=field)
        if self.disk_tier is not None and not self.disk_tier_size:
            raise InvalidInput("must be more than 0, or nothing can be kept there", field="disk_tier_size")

    def limits(self) -> SchedulerLimits:
        """What the scheduler is to keep to."""
        wanted = aims(self.objective, self.slo_itl_ms / 1000)
        step = wanted.max_step_seconds if self.max_step_ms is None else self.max_step_ms / 1000
        return SchedulerLimits(
            slots=self.max_running,
            max_batch_tokens=self.max_batch_tokens,
            max_step_seconds=step or None,
            policy=self.policy or wanted.policy,
            first_token_seconds=self.slo_ttft_ms / 1000,
            weights=tuple(self.tenant_weights.items()),
        )

    def _check_executor(self) -> None:
        """That nothing is asked of an executor that only the other one does."""
        compiled = {"recipe": self.recipe != DEFAULT_RECIPE, "numerics": self.numerics != "invariant"}
        if self.executor == "compiled" and self.dtype != "float32":
            raise InvalidInput("is of the eager executor; compiled code takes a recipe instead", field="dtype")
        if self.executor == "eager" or self.dtype != "float32":
            for field in (name for name, set_ in compiled.items() if set_):
                raise InvalidInput("is of compiled code; the eager executor computes in its dtype", field=field)
