"""``ConfigReader``: typed access to a ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError

# Far above any real model; below what could exhaust memory by the number of modules alone.
MAX_LAYERS = 1024
MAX_SIZE = 1 << 24
MAX_CONTEXT = 1 << 31


class ConfigReader:
    """Typed access to a config; every error names the file and the key.

    ``null`` counts as absent, as it does in Transformers.
    """

    def __init__(self, config: Mapping[str, Any], file: object, prefix: str = "") -> None:
        self.config = config
        self.file = file
        self.prefix = prefix

    def fail(self, key: str, message: str) -> CheckpointError:
        """An error about one key, ready to raise."""
        return CheckpointError(f"config key {self.prefix + key!r} {message}", file=self.file)

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is not None:
            return value
        if default is ...:
            raise self.fail(key, "is missing")
        return default

    def integer(
        self,
        key: str,
        default: int | None = ...,  # type: ignore[assignment]
        most: int = MAX_SIZE,
        least: int = 1,
    ) -> int:
        """An integer from ``least`` to ``most``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(key, f"must be an integer from {least} to {most}, not {value!r:.50}")
        return value

    def number(self, key: str, default: float | None = ...) -> float:  # type: ignore[assignment]
        """A finite number above 0."""
        value = self._get(key, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        # A JSON integer can be too large for a float, where isfinite raises instead of answering.
        if not good or not 0 < value < 1e30 or not math.isfinite(value):
            raise self.fail(key, f"must be a finite number above 0, not {value!r:.50}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, not {value!r:.50}")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, not {value!r:.50}")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object, empty if absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(key, f"must be an object, not {value!r:.50}")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id, a list of them, or nothing; each inside the vocabulary."""
        value = self._get(key, [])
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise self.fail(key, f"must hold token ids below {vocab_size}, not {token!r:.50}")
        return tuple(dict.fromkeys(ids))
