"""What a server is run for, and what that means for its scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.engine.ordering import PolicyName

Objective = Literal["throughput", "latency", "slo"]


@dataclass(frozen=True, slots=True)
class Aims:
    """What an objective asks of the scheduler.

    Attributes:
        max_step_seconds: Longest step wanted while sequences decode.
        policy: Who comes first.
    """

    max_step_seconds: float | None
    policy: PolicyName


def aims(objective: Objective, gap_seconds: float) -> Aims:
    """The trade-off between long steps, which compute prompts soon, and short ones, which keep tokens coming.

    - ``throughput``: long steps; many prompt tokens share the reading of the weights.
    - ``latency``: steps of at most half the gap that is allowed between tokens, so that gaps are even.
    - ``slo``: steps nearly as long as the gap allows, for their length is an estimate; prompts in the order of their
      deadlines, lost ones last.

    Args:
        objective: Which one.
        gap_seconds: Service level: between two tokens.
    """
    if objective == "throughput":
        return Aims(0.5, "fcfs")
    if objective == "latency":
        return Aims(gap_seconds / 2, "fcfs")
    return Aims(0.8 * gap_seconds, "slo")
