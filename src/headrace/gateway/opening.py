"""``opened``: how every route with a body begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from starlette.requests import Request

from headrace.api.parsing import Parsed, R
from headrace.gateway.http import read_body
from headrace.gateway.job import Opened
from headrace.gateway.services import Services

T = TypeVar("T")

# Turning text into tokens takes about a microsecond a token, and vectors into JSON no less: beyond this it moves to a
# thread, so that the streams of others go on.
INLINE_BYTES = 20_000


class _ForModel(Protocol):
    """What every request with a body says: which model it is for; None: the one served."""

    model: str | None


async def opened(http: Request, services: Services, parse: Callable[..., Parsed[R]]) -> Opened[R]:
    """Read and parse a body, and check that it is for the model served.

    Args:
        http: The request.
        services: What routes work with.
        parse: One of ``api.parsing``.

    Raises:
        ApiError: 400 for a body that cannot be used, 404 for a model that is not served here, ….
    """
    received = time.monotonic()
    body = await read_body(http, services.config)
    parsed = parse(body, lenient=services.config.lenient)
    services.check_model(cast("_ForModel", parsed.request).model)
    return Opened(parsed.request, parsed.warnings, len(body), received, http.state.tenant)


async def aside(size: int, make: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call what works on about ``size`` bytes: here if they are few, else in a thread."""
    if size <= INLINE_BYTES:
        return make(*args, **kwargs)
    return await asyncio.to_thread(make, *args, **kwargs)
