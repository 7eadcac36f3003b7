"""Every ATen operation that is translated."""

from __future__ import annotations

from typing import Any

from headrace.compiler.capture import (
    comparisons,
    contractions,
    creation,
    elementwise,
    functions,
    indexing,
    norms,
    reductions,
    views,
)
from headrace.compiler.capture.context import Lower

TABLE: dict[Any, Lower] = {
    **elementwise.TABLE,
    **functions.TABLE,
    **comparisons.TABLE,
    **reductions.TABLE,
    **norms.TABLE,
    **views.TABLE,
    **creation.TABLE,
    **indexing.TABLE,
    **contractions.TABLE,
}
