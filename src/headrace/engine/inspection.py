"""What an engine is doing, as plain data for people."""

from __future__ import annotations

from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence


def describe(scheduler: Scheduler) -> dict[str, object]:
    """Slots, queue, pages, tree and tiers, without a word of any prompt."""
    memory, tiers = scheduler.memory, scheduler.tiers
    return {
        "running": [_of(s) for s in scheduler.running],
        "waiting": [_of(s) for s in scheduler.waiting],
        "pages": dict(zip(("used", "cached", "free"), memory.usage(), strict=True)),
        "tree": memory.tree.describe(),
        "tiers": tiers.describe(),
        "transfers": tiers.waiting,
        "step_cost": dict(zip(("base", "per_token", "per_1000_pairs"), scheduler.cost.coefficients, strict=True)),
    }


def _of(sequence: Sequence) -> dict[str, int]:
    return {
        "request": sequence.request,
        "index": sequence.index,
        "slot": sequence.slot,
        "prompt_tokens": sequence.prompt_length,
        "output_tokens": sequence.output_length,
        "computed": sequence.computed,
        "pages": sequence.held.pages,
        "preparing": sequence.preparing,
    }
