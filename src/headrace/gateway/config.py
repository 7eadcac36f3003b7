"""``GatewayConfig``: what the operator decides about the web side."""

from __future__ import annotations

import hashlib

import msgspec

MiB = 1 << 20


class ApiKey(msgspec.Struct, frozen=True):
    """A key that a caller may show.

    Attributes:
        secret: The key.
        tenant: Whose it is: the server is shared between tenants.
    """

    secret: str
    tenant: str

    @classmethod
    def parse(cls, line: str) -> ApiKey:
        """A key, and behind a blank the tenant's name; without one each key is a tenant of its own."""
        secret, _, tenant = line.strip().partition(" ")
        return cls(secret, tenant.strip() or f"key-{hashlib.sha256(secret.encode()).hexdigest()[:8]}")


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are taken.

    Attributes:
        api_keys: Keys of which a caller must show one; empty lets everybody in.
        cors_origins: Origins whose pages may call; ``*`` is any.
        max_body_bytes: Largest request body.
        body_timeout: Seconds that a request body may take to arrive.
        max_queue: Samples that may wait beyond those that run; more are answered with 429.
        lenient: Ignore unknown fields, with a warning header, instead of refusing them.
        heartbeat_timeout: Seconds without a sign of life after which a replica counts as hung.
        step_timeout: Seconds after which a single step counts as hung.
        start_timeout: Seconds that a replica may take from its start to its first sign of life.
        drain_timeout: Seconds that running requests get when the server is told to end.
        store_bytes: Bytes that stored responses may take together; 0: nothing is stored.
        store_responses: How many responses are stored at most.
        keep_alive: Seconds of silence after which a stream gets a comment line, so that proxies do not cut it.
    """

    api_keys: tuple[ApiKey, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * MiB
    body_timeout: float = 120.0
    max_queue: int = 512
    lenient: bool = False
    heartbeat_timeout: float = 5.0
    step_timeout: float = 300.0
    start_timeout: float = 60.0
    drain_timeout: float = 30.0
    store_bytes: int = 256 * MiB
    store_responses: int = 10_000
    keep_alive: float = 15.0
