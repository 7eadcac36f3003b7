"""``Case``: a request, and what it must be answered with."""

from dataclasses import dataclass, field

# The server under test replaces it by the name of the model that it serves.
MODEL = "MODEL"


@dataclass(frozen=True)
class Case:
    """One request, mostly a bad one.

    Attributes:
        name: Unique.
        path: Route.
        body: Request body.
        param: Expected ``error.param``.
        status: Expected HTTP status; of several, any will do.
        headers: Headers beside (or in place of) ``Content-Type: application/json``.
        method: HTTP method.
        code: Expected ``error.code``; None: any.
        needs_server: Only a running server can judge it.
    """

    name: str
    path: str
    body: bytes
    param: str | None
    status: tuple[int, ...] = (400,)
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    code: str | None = None
    needs_server: bool = False
