"""What fields of requests are made of: ranges, and the mark of those that are honoured only at a neutral value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_STOP_STRINGS = 16
# The search for stop strings takes some 300 bytes of memory a character.
MAX_STOP_CHARACTERS = 1000
MAX_LOGPROBS = 20
MAX_N = 128
# A chat template gets these from the request itself.
RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message")
LOGIT_BIAS_KEY = "^(0|[1-9][0-9]{0,9})$"

TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
NonEmpty = Annotated[str, Meta(min_length=1)]
MAX_LABEL = 1024  # characters; each label that is seen is kept for a while
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every request body and of the objects in it: frozen, and closed to unknown fields."""


class Refused(NamedTuple):
    """A field that would change the answer and is not honoured here, except at a value that asks for nothing."""

    neutral: list[Any]
    why: str


def refused(neutral: list[Any], why: str) -> Meta:
    """Type annotation of such a field; the schema lists just the neutral values, so that it tells the truth."""
    return Meta(
        description=f"Not supported. {why}",
        extra_json_schema={"enum": neutral},
        extra={"refused": Refused(neutral, why)},
    )


def refused_fields(request: type[msgspec.Struct]) -> Iterator[tuple[str, Refused]]:
    """Name and neutral values of the fields of ``request`` that are known but not honoured."""
    for name, hint in get_type_hints(request, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.extra and "refused" in meta.extra:
                yield name, meta.extra["refused"]


def given(request: Request, *names: str) -> dict[str, Any]:
    """Those of the fields that the caller gave, by name."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}
