"""Why a schema is refused, and where in it."""

from __future__ import annotations

import json

from headrace.errors import InvalidInput

Place = tuple[str | int, ...]
"""The way from the root of a document to one of its values: keys and indices."""


class Refused(Exception):
    """A schema cannot be enforced exactly, or not at a bounded price.

    Args:
        place: Where in the schema, the keyword last.
        message: What is wrong and what to do about it, in one sentence that follows the place.
    """

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message

    def as_invalid_input(self, field: str) -> InvalidInput:
        """The error for the caller, who named the schema ``field``."""
        pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.place)
        keyword = next((part for part in reversed(self.place) if isinstance(part, str)), None)
        about = f"{keyword!r} (at #{pointer}) " if keyword is not None else "the schema "
        return InvalidInput(about + self.message, field=field + path_of(self.place), code="unsupported_schema")


def path_of(place: Place) -> str:
    """``place`` as it is written behind the name of a field: ``.properties.x.anyOf[0]``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if _is_plain(part) else f"[{json.dumps(part[:100])}]"
        for part in place
    )


def _is_plain(name: str) -> bool:
    return len(name) <= 100 and name.replace("$", "").replace("-", "_").isidentifier()
