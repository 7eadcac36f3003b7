"""Names of axes: what the caller gave, else after the weight or the axis that one comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.compiler.capture.draft import Draft

# What the rows (0) and columns (1) of a matrix are called, by the last part of its name.
WEIGHTS = {
    ("embed_tokens", "0"): "vocab", ("embed_tokens", "1"): "hidden", ("lm_head", "0"): "vocab",
    ("q_proj", "0"): "query", ("k_proj", "0"): "key", ("v_proj", "0"): "value", ("o_proj", "1"): "mixed",
    ("gate_proj", "0"): "ffn", ("up_proj", "0"): "ffn", ("down_proj", "1"): "ffn",
}  # fmt: skip
# What an axis is split into.
SPLITS = {
    ("query", "outer"): "head", ("key", "outer"): "kv_head", ("value", "outer"): "kv_head",
    ("query", "inner"): "head_dim", ("key", "inner"): "head_dim", ("value", "inner"): "head_dim",
    ("head", "outer"): "kv_head", ("head", "inner"): "group",
}  # fmt: skip


@dataclass(slots=True)
class Names:
    """Gives every axis of a draft its name.

    Attributes:
        known: Names given so far, by representative.
        extents: Length of everything that has been named, so that one name never has two.
    """

    draft: Draft
    known: dict[str, str] = field(default_factory=dict)
    extents: dict[str, int | str] = field(default_factory=dict)

    def name(self, axes: Iterable[str], scope: Mapping[str, str] | None = None) -> dict[str, str]:
        """Names of axes, in order: those that are known, in ``known`` or in ``scope``, stay."""
        given = dict(self.known if scope is None else scope)
        taken = set(given.values())
        for axis in axes:
            found = self.draft.find(axis)
            if found not in given:
                given[found] = self._free(found, taken)
                taken.add(given[found])
                self.extents[given[found]] = self.draft.extent(found)
        return given

    def _free(self, axis: str, taken: set[str]) -> str:
        if not axis.startswith("$"):
            return axis
        extent = self.draft.extent(axis)
        base = self._hint(axis, set())
        number = 0
        while True:
            name = (base or "a") + (str(number) if number or not base else "")
            declared = self.draft.axes.get(name)
            if name not in taken and declared is None and self.extents.get(name, extent) == extent:
                return name
            number += 1 + (number == 0 and bool(base))

    def _hint(self, axis: str, seen: set[str]) -> str:
        """What an axis should be called; empty if nothing is known."""
        found = self.draft.find(axis)
        if not found.startswith("$"):
            return found
        if found in seen:
            return ""
        seen.add(found)
        mine = [(source, role) for a, source, role in self.draft.hints if self.draft.find(a) == found]
        general = ""
        for source, role in mine:
            base = source if source not in self.draft.axes else self._hint(source, seen)
            word = (WEIGHTS if source == base else SPLITS).get((base, role)) or SPLITS.get((base, role))
            if word:
                return word
            general = general or (f"{base}_{role}" if base else "")
        return general
