"""The official JSON Schema Test Suite, draft 2020-12: a group is refused, or all its instances are judged right."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from schema_cases import ByteGrammar

from headrace.errors import InvalidInput
from headrace.text.schema.numbers import MAX_DIGITS

# Refused on purpose: references to other documents, custom metaschemas, and five groups that no grammar holds.
REFUSED = {"$ref": 22, "$schema": 2, "uniqueItems": 2, "minProperties": 1, "multipleOf": 1}
GROUPS = 368


def judged(group: dict[str, Any]) -> str | None:
    """The keyword that is refused; None: all instances are judged right."""
    try:
        grammar = ByteGrammar.of_schema(group["schema"])
    except InvalidInput as refused:
        if "no finite value" in refused.message:
            assert not any(test["valid"] for test in group["tests"])
            return None
        return refused.message.split("'")[1]
    for test in group["tests"]:
        is_valid = test["valid"] and not is_too_long(test["data"])
        assert grammar.admits(test["data"]) == is_valid, (group["description"], test)
    return None


def is_too_long(value: Any) -> bool:
    """Whether it is a number with more digits than are ever written; the required tests have none."""
    return isinstance(value, int | float) and abs(value) >= 10**MAX_DIGITS


def test_every_group_is_enforced_or_refused(suite: Path):
    groups = [group for file in sorted(suite.glob("*.json")) for group in json.loads(file.read_text())]
    verdicts = Counter(map(judged, groups))
    assert verdicts.pop(None) == GROUPS - sum(REFUSED.values())
    assert verdicts == REFUSED


def test_optional_groups_are_judged_right_where_they_are_not_refused(suite: Path):
    # `format` is an annotation; cross-draft needs other documents; the rest is what a validator may leave out.
    names = ["bignum", "float-overflow", "ecmascript-regex", "non-bmp-regex", "anchor", "id", "unknownKeyword"]
    groups = [
        group
        for name in names
        for group in json.loads((suite / "optional" / f"{name}.json").read_text())
        if "$schema" not in group.get("schema", {}) or "2020-12" in group["schema"]["$schema"]
    ]
    assert [judged(group) for group in groups].count(None) > 30
