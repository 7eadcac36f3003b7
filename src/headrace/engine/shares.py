"""``Shares``: how many tokens each tenant got, for its weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

MOST_ABSENT = 1024  # tenants without work that are remembered


class Shares:
    """A virtual token counter a tenant (VTC, Sheng et al., arXiv:2401.00588).

    While several tenants have work, whoever lags behind is served first, so each gets tokens in proportion to its
    weight. Who had none catches up with the least served of the others: idle time is not saved up.

    Args:
        weights: Of tenants; 1 where nothing is said.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._service: dict[str, float] = {}  # of those that have work
        self._sequences: Counter[str] = Counter()

    def service(self, tenant: str) -> float:
        """Tokens that a tenant got, divided by its weight, counted from when all were equal."""
        return self._service.get(tenant, 0.0)

    def enter(self, tenant: str) -> None:
        """A tenant has one more sequence."""
        if not self._sequences[tenant]:
            others = [self._service[name] for name in self._service if self._sequences[name]]
            self._service[tenant] = max(self._service.get(tenant, 0.0), min(others, default=0.0))
        self._sequences[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A tenant has one less sequence."""
        self._sequences[tenant] -= 1
        if not self._sequences[tenant]:
            del self._sequences[tenant]
            # Nothing is remembered of who lags behind those at work; and nothing at all when nobody is.
            least = min((self._service[name] for name in self._sequences), default=float("inf"))
            gone = [name for name, got in self._service.items() if name not in self._sequences and got <= least]
            if not gone and len(self._service) - len(self._sequences) > MOST_ABSENT:
                absent = [name for name in self._service if name not in self._sequences]
                gone = [min(absent, key=self.service)]  # it gains least by being forgotten
            for name in gone:
                del self._service[name]

    def serve(self, tenant: str, tokens: int) -> None:
        """A tenant gets so many tokens computed."""
        self._service[tenant] += tokens / self._weights.get(tenant, 1.0)

    def check(self, tenants: Iterable[str]) -> None:
        """Assert the invariants, given the tenant of each sequence."""
        assert +self._sequences == Counter(tenants), "a tenant's sequences are miscounted"
        assert set(self._sequences) <= set(self._service), "a tenant with work has no account"
