"""Recipes: in which numbers a model is computed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from headrace.errors import InvalidInput

Activations = Literal["float32", "bf16", "int8"]
Half = Literal["float32", "bf16"]
Numerics = Literal["invariant", "free"]

HEAD = ("lm_head.weight", "*embed_tokens.weight")
QKV = ("*.q_proj.weight", "*.k_proj.weight", "*.v_proj.weight")
BLOCKS = (8, 16, 32)
FINE = 16
# Positions whose part of attention is computed alone.
POSITIONS: dict[str, int] = {"invariant": 256, "free": 1024}
# Part of every numerics id: raise it when what a recipe inserts into programs changes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """In which numbers products with weights, and attention, are computed. All else is float32.

    Attributes:
        name: How users call it.
        activations: What the activations of a product with a weight are rounded to. ``float32``: not at all.
            ``bf16``: so is the weight. ``int8``: 8 bits with a scale for each block, if the weight is stored in blocks
            itself; products with weights stored as floats are computed as by ``bf16``, none of them exact.
        asymmetric: ``int8``: a block's codes reach from its least element to its greatest; else from minus its largest
            magnitude to that.
        block: ``int8``: elements in a block; one of ``BLOCKS``.
        exact: Patterns (``fnmatch``) of the names of weights whose products stay as good as exact: 16-bit activations
            in place of 8-bit ones, float32 in place of bf16.
        attention: What queries and attention's weights are rounded to before they meet keys and values.
        states: What keys and values are stored in.
        fine: ``int8``: patterns of the names of weights whose blocks have 16 elements in any case.
        positions: Positions whose part of attention is computed alone, before parts are joined from left to right.
    """

    name: str
    activations: Activations = "float32"
    asymmetric: bool = True
    block: int = 32
    exact: tuple[str, ...] = ()
    attention: Half = "float32"
    states: Half = "float32"
    fine: tuple[str, ...] = ()
    positions: int = POSITIONS["invariant"]

    def __post_init__(self) -> None:
        if self.block not in BLOCKS:
            raise InvalidInput(f"must be one of {', '.join(map(str, BLOCKS))}, not {self.block}", field="block")

    def is_exact(self, weight: str) -> bool:
        """Whether products with this weight stay as good as exact."""
        return any(fnmatchcase(weight, pattern) for pattern in self.exact)

    def block_of(self, weight: str) -> int:
        """Elements in a block of the activations that meet this weight, and of the weight itself."""
        return min(self.block, FINE) if any(fnmatchcase(weight, pattern) for pattern in self.fine) else self.block

    @property
    def numerics_id(self) -> str:
        """A short name of these numbers, which no other recipe has; the recipe's name and 8 hexadecimal digits."""
        fields = asdict(self) | {"version": VERSION}
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return f"{self.name}-{digest[:8]}"


def _int8(
    name: str, *, asymmetric: bool = True, block: int = 32, fine: tuple[str, ...] = (), exact: tuple[str, ...] = ()
) -> Recipe:
    return Recipe(name, "int8", asymmetric, block, exact, attention="bf16", states="bf16", fine=fine)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("float32"),
        Recipe("bf16", "bf16", attention="bf16", states="bf16"),
        _int8("int8", fine=HEAD),
        _int8("int8-head", exact=HEAD),
        _int8("int8-all"),
        _int8("int8-qkv", exact=(*HEAD, *QKV)),
        _int8("int8-block16", block=16, exact=HEAD),
        _int8("int8-block16-all", block=16),
        _int8("int8-symmetric", asymmetric=False, exact=HEAD),
        _int8("int8-symmetric-all", asymmetric=False),
    )
}
DEFAULT = "int8"


def recipe_named(name: str, numerics: str = "invariant") -> Recipe:
    """The recipe of this name.

    Args:
        name: One of ``RECIPES``.
        numerics: ``invariant``: sums are cut as suits every step, so that a sequence's logits depend on nothing but
            itself; ``free``: as suits long prompts, and nothing is promised.

    Raises:
        InvalidInput: There is none, or no such numerics.
    """
    if name not in RECIPES:
        raise InvalidInput(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}", field="recipe")
    if numerics not in POSITIONS:
        raise InvalidInput(f"must be one of {', '.join(POSITIONS)}, got {numerics!r:.80}", field="numerics")
    recipe = RECIPES[name]
    if numerics == "invariant":
        return recipe
    return replace(recipe, name=f"{name}-{numerics}", positions=POSITIONS[numerics])
