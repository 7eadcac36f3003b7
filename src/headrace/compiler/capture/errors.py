"""What capture refuses."""

from __future__ import annotations

from headrace.compiler.errors import Unsupported

__all__ = ["Refused", "Unsupported"]


class Refused(Exception):
    """Raised where an operation is translated, by code that does not know which one it is; becomes ``Unsupported``."""
