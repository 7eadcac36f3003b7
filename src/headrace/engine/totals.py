"""``Totals``: what an engine counts, and the ``EngineStats`` that it makes of that."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.engine.messages import EngineStats
from headrace.engine.scheduler import Scheduler


@dataclass(slots=True)
class Totals:
    """Counters since the start, and the times of the last step; see ``EngineStats``."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    masked_tokens: int = 0
    forced_tokens: int = 0
    aborted: int = 0
    step_seconds: float = 0.0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    ended: float = 0.0

    def restart(self) -> None:
        """Count from nothing again; only steps go on, for batches bear their numbers."""
        for field in fields(self):
            if field.name != "steps":
                setattr(self, field.name, field.default)

    def stats(self, scheduler: Scheduler) -> EngineStats:
        """Gauges and counters."""
        held, cached, free = scheduler.memory.usage()
        return EngineStats(
            step=self.steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_used=held,
            pages_cached=cached,
            pages_free=free,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            tier_tokens=scheduler.tiers.loaded_tokens,
            output_tokens=self.output_tokens,
            masked_tokens=self.masked_tokens,
            forced_tokens=self.forced_tokens,
            preemptions=scheduler.roster.preemptions,
            aborted=self.aborted,
            step_seconds=self.step_seconds,
            forward_seconds=self.forward_seconds,
            host_seconds=self.host_seconds,
            ended=self.ended,
        )
