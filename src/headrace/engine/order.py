"""``Order``: sequences as a policy wants them."""

from __future__ import annotations

import math

from headrace.engine.cost import StepCost
from headrace.engine.ordering import POLICIES, PolicyName, Standing
from headrace.engine.sequence import Sequence
from headrace.engine.shares import Shares
from headrace.memory.state_memory import StateMemory

LOOKED_UP = 64  # sequences whose prefixes are looked up at a time


class Order:
    """Looks up what a policy may know of sequences, and sorts them.

    Args:
        policy: The policy.
        first_token_seconds: For ``slo``: time to the first token of requests that name none.
        memory: Where prefixes are cached.
        cost: What a prompt takes.
        shares: What tenants got.
    """

    def __init__(
        self, policy: PolicyName, first_token_seconds: float, memory: StateMemory, cost: StepCost, shares: Shares
    ) -> None:
        self._policy, self._key = policy, POLICIES[policy]
        self._first_token_seconds = first_token_seconds
        self._memory, self._cost, self._shares = memory, cost, shares

    def sort(self, sequences: list[Sequence], now: float) -> list[Sequence]:
        """Sequences in the order of the policy.

        Args:
            sequences: By rank.
            now: Stamp.
        """
        if self._policy == "fcfs" or len(sequences) < 2:
            return sequences.copy()
        if self._policy == "longest-prefix":
            sequences = sequences[:LOOKED_UP]
        return sorted(sequences, key=lambda sequence: self._key(self._standing(sequence, now)))

    def _standing(self, sequence: Sequence, now: float) -> Standing:
        cached, slack = 0, math.inf
        if self._policy == "longest-prefix" and sequence.can_share_prompt:
            cached = self._memory.cached(sequence.root, sequence.tokens[: sequence.known])
        elif self._policy == "slo":
            wanted = min(sequence.deadline, sequence.queued + self._first_token_seconds)
            slack = wanted - now - self._cost.prefill(sequence.computed, sequence.pending)
        return Standing(
            arrival=sequence.arrival,
            priority=sequence.priority,
            waited=now - sequence.queued,
            cached=cached,
            slack=slack,
            service=self._shares.service(sequence.tenant),
        )
