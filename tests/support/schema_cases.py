"""Random JSON Schemas and instances, and what a grammar says of an instance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice, permutations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from headrace.text.grammar.engine import parser_limits
from headrace.text.schema import Spacing, schema_rules

END = 256
MOST_TEXTS = 1000  # of one value that are tried

# A small world, so that schemas and instances meet.
names = st.sampled_from(["a", "b", "ab", "c"])
strings = st.sampled_from(["", "a", "b", "ab", "ba", "aab", "é", '"', "\n\\", "abcdef"])
numbers = st.sampled_from([0, 1, -1, 2, 3, 7, 10, 21, -12, 100, 0.5, 1.5, -0.25, 2.0, 1e3, 12.75])
scalars = st.none() | st.booleans() | numbers | strings
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
patterns = st.sampled_from(
    ["a", "^a", "b$", "^a*$", "^(a|b)+$", "^$", "[^a]", "^.{2}$", "^(?!ab)", "^[ab]{1,2}$", "é|\\d"]
)
counts = st.integers(0, 3)
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


LOGIC = "allOf anyOf oneOf not if then else $ref"
# Most schemas are about one type, so that their keywords meet.
FAMILIES = [
    "type const enum multipleOf minimum maximum exclusiveMinimum exclusiveMaximum",
    "type const enum minLength maxLength pattern",
    "type enum minItems maxItems uniqueItems prefixItems items contains minContains maxContains unevaluatedItems",
    "type required minProperties maxProperties dependentRequired properties patternProperties additionalProperties"
    " propertyNames dependentSchemas unevaluatedProperties",
]
FAMILIES.append(" ".join(FAMILIES))


def schemas(*, leaves: int = 8) -> st.SearchStrategy[Any]:
    """Schemas over all keywords; those at the bottom are flat."""
    return st.one_of([_family(words.split(), leaves) for words in FAMILIES]).map(_with_definitions)


def _family(words: list[str], leaves: int) -> st.SearchStrategy[Any]:
    assertions = {word: strategy for word, strategy in _ASSERTIONS.items() if word in words}
    flat = st.booleans() | st.fixed_dictionaries({}, optional=assertions).map(_some_of)

    def applied(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=3)
        by_name = st.dictionaries(names, inner, max_size=3)
        applicators = dict.fromkeys("allOf anyOf oneOf prefixItems".split(), several)
        applicators |= dict.fromkeys("properties dependentSchemas".split(), by_name)
        applicators |= dict.fromkeys(
            "not if then else additionalProperties propertyNames items contains".split(), inner
        )
        applicators |= dict.fromkeys("unevaluatedItems unevaluatedProperties".split(), inner)
        applicators["patternProperties"] = st.dictionaries(patterns, inner, max_size=2)
        applicators["$ref"] = st.sampled_from(["#/$defs/x", "#/$defs/y"])
        kept = {word: strategy for word, strategy in applicators.items() if word in [*words, *LOGIC.split()]}
        return st.fixed_dictionaries({}, optional=kept | assertions).map(_some_of)

    return st.recursive(flat, applied, max_leaves=leaves)


_ASSERTIONS: dict[str, st.SearchStrategy[Any]] = {
    "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
    "const": values,
    "enum": st.lists(values, min_size=1, max_size=4),
    "multipleOf": st.sampled_from([1, 2, 3, 5, 7, 0.5, 0.25, 1.5, 10]),
    "minimum": numbers,
    "maximum": numbers,
    "exclusiveMinimum": numbers,
    "exclusiveMaximum": numbers,
    "minLength": counts,
    "maxLength": counts,
    "pattern": patterns,
    "minItems": counts,
    "maxItems": counts,
    "uniqueItems": st.booleans(),
    "minContains": counts,
    "maxContains": counts,
    "required": st.lists(names, max_size=2, unique=True),
    "minProperties": st.integers(0, 2),
    "maxProperties": counts,
    "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2),
}


def _some_of(schema: dict[str, Any]) -> dict[str, Any]:
    """At most five keywords, so that schemas are seldom contradictions; which ones depends on the schema alone."""
    kept = random.Random(repr(schema)).sample(sorted(schema), min(len(schema), 5))
    return {keyword: value for keyword, value in schema.items() if keyword in kept}


def _with_definitions(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    # Recursion, but always through an array or object: the oracle does not notice that it goes round in circles.
    definitions = {
        "x": {"type": ["object", "integer"], "properties": {"a": {"$ref": "#/$defs/x"}}},
        "y": {"items": {"$ref": "#"}, "properties": {"b": {"$ref": "#"}}},
    }
    return {**schema, "$defs": definitions}


class ByteGrammar:
    """A grammar over bytes, for whoever asks about whole texts."""

    def __init__(self, source: str, spacing: Spacing = Spacing.COMPACT) -> None:
        self._separators = (",", ":") if spacing is Spacing.TIGHT else (", ", ": ")
        self._matcher = LLMatcher(_BYTES, source, log_level=0, limits=parser_limits())
        assert not self._matcher.is_error(), f"{self._matcher.get_error()}\n{source}"

    @classmethod
    def of_schema(cls, schema: Any, spacing: Spacing = Spacing.COMPACT) -> ByteGrammar:
        start, rules = schema_rules(schema, field="schema", spacing=spacing)
        return cls(f'%llguidance {{"no_forcing": true}}\nstart: {start}\n{rules}', spacing)

    def accepts(self, text: str) -> bool:
        matcher = self._matcher.deep_copy()
        return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()

    def admits(self, value: Any) -> bool:
        """Whether the grammar accepts a text of a value."""
        return any(self.accepts(text) for text in islice(texts_of(value, *self._separators), MOST_TEXTS))

    def walk(self, rng: random.Random, most: int = 300) -> str | None:
        """A text of random allowed bytes; None if it does not end soon. The way never ends before the text may."""
        matcher, text = self._matcher.deep_copy(), bytearray()
        mask = np.zeros(-(-(END + 1) // 32), np.uint32)
        while len(text) < most:
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            assert not matcher.is_error(), matcher.get_error()
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
            assert allowed, f"a dead end after {bytes(text)!r}"
            assert (END in allowed) == matcher.is_accepting()
            common = [byte for byte in allowed if byte == END or byte in b'ab01"]},']
            token = rng.choice(common if common and rng.random() < 0.9 else allowed)
            if token == END:
                return text.decode()
            assert matcher.consume_token(token)
            text.append(token)
        return None


def value_of(text: str) -> Any:
    """The value of a text.

    Raises:
        ValueError: It has a number that a double does not hold, of which an oracle that computes with doubles would
            say something else.
    """

    def number(digits: str) -> float:
        try:
            exact = Decimal(repr(float(digits))) == Decimal(digits)
        except ArithmeticError:  # an exponent of many digits
            exact = False
        if not exact:
            raise ValueError(digits)
        return float(digits)

    return json.loads(text, parse_float=number)


class _Bytes:
    """A tokenizer whose tokens are the bytes, and an end."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = END
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


_BYTES = LLTokenizer(_Bytes(), eos_token=[END])


def texts_of(value: Any, comma: str, colon: str) -> Iterator[str]:
    """Ways to write a value: with its keys in every order, and numbers with and without point and exponent."""
    if isinstance(value, dict):
        members = [
            [json.dumps(key, ensure_ascii=False) + colon + text for text in texts_of(inner, comma, colon)]
            for key, inner in value.items()
        ]
        for order in permutations(members):
            yield from ("{" + comma.join(chosen) + "}" for chosen in product(*order))
    elif isinstance(value, list):
        items = [list(texts_of(item, comma, colon)) for item in value]
        yield from ("[" + comma.join(chosen) + "]" for chosen in product(*items))
    elif isinstance(value, float):
        plain = f"{Decimal(repr(value)):f}"
        yield from dict.fromkeys([json.dumps(value), plain, plain.rstrip("0").rstrip(".") if "." in plain else plain])
    else:
        yield json.dumps(value, ensure_ascii=False)
