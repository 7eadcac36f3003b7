"""Who comes first: scheduling policies as pure functions from a sequence's standing to a key that sorts.

Lower keys come first. Every policy looks at the priority first: a lower number is more urgent, as in vLLM's requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["fcfs", "longest-prefix", "slo", "fair"]

LONGEST_OVERTAKING = 10.0  # seconds that shorter prefixes are overtaken for


@dataclass(frozen=True, slots=True)
class Standing:
    """What a policy may know of a waiting sequence.

    Attributes:
        arrival: Order of arrival.
        priority: Lower is more urgent.
        waited: Seconds since it was queued.
        cached: Tokens of its prompt that are in the prefix tree.
        slack: Seconds that are left until its prefill must begin for its first token to be in time; infinite if it has
            no deadline.
        service: Tokens that its tenant got so far, divided by the tenant's weight.
    """

    arrival: int
    priority: int = 0
    waited: float = 0.0
    cached: int = 0
    slack: float = math.inf
    service: float = 0.0


Key = tuple[float, ...]


def first_come(standing: Standing) -> Key:
    """First come, first served."""
    return standing.priority, standing.arrival


def longest_prefix(standing: Standing) -> Key:
    """The longest cached prefix first, before it is evicted (SGLang, arXiv:2312.07104).

    Whoever was overtaken for long comes before them all, so that nobody starves.
    """
    overdue = standing.waited > LONGEST_OVERTAKING
    return standing.priority, not overdue, 0 if overdue else -standing.cached, standing.arrival


def least_slack(standing: Standing) -> Key:
    """The most urgent deadline first, as long as it can be met.

    Serving those that are too late already would make others late as well (the domino effect of earliest deadline
    first under overload), so they come last.
    """
    late = standing.slack < 0
    return standing.priority, late, 0.0 if late else standing.slack, standing.arrival


def least_served(standing: Standing) -> Key:
    """The tenant that got the fewest tokens for its weight first (virtual token counter, arXiv:2401.00588)."""
    return standing.priority, standing.service, standing.arrival


POLICIES: dict[PolicyName, Callable[[Standing], Key]] = {
    "fcfs": first_come,
    "longest-prefix": longest_prefix,
    "slo": least_slack,
    "fair": least_served,
}
