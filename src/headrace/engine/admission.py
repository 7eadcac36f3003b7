"""What can be expected of a request before it runs: pure functions of the engine's gauges."""

from __future__ import annotations

from headrace.engine.messages import EngineStats


def expected_prefill(stats: EngineStats, tokens: int) -> float:
    """Seconds until a new prompt is computed, behind those that wait; 0 while the engine's speed is unknown.

    Args:
        stats: The engine's, of its last step.
        tokens: Of the prompt.
    """
    rate = stats.prefill_rate
    return (stats.prefill_tokens + tokens) / rate if rate > 0 else 0.0
