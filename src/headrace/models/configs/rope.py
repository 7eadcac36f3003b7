"""Rotary position embedding: its settings, as configs write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.models.configs.reader import MAX_CONTEXT, ConfigReader

RopeType = Literal["default", "linear", "llama3", "yarn", "factors"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864) and its scaling.

    Attributes:
        type: ``default``; ``linear`` divides every frequency by ``factor`` (position interpolation,
            arXiv 2306.15595); ``llama3`` does so for long wavelengths only and blends between; ``yarn`` (Peng et al.,
            arXiv 2309.00071) too, and scales the rotated vectors; ``factors`` divides frequency i by ``factors[i]``,
            the table that GGUF files carry instead of a rule.
        theta: Base of the wavelengths.
        factor: Divisor of ``linear``, ``llama3`` and ``yarn``.
        low_freq_factor: ``llama3``: wavelengths above ``original_context / low_freq_factor`` are scaled.
        high_freq_factor: ``llama3``: wavelengths below ``original_context / high_freq_factor`` are kept.
        original_context: ``llama3`` and ``yarn``: context that the model was first trained with.
        beta_fast: ``yarn``: frequencies that turn more often than that in the original context are kept.
        beta_slow: ``yarn``: those that turn less often are divided.
        truncate: ``yarn``: those bounds are rounded outwards to whole frequencies.
        attention_factor: ``yarn``: factor of rotated queries and keys.
        factors: ``factors``: one divisor a pair of a head's elements.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    factors: tuple[float, ...] = ()


def rope_reader(read: ConfigReader) -> ConfigReader:
    """The object that holds the rope settings: the newer key's if it is there."""
    key = "rope_parameters" if read.config.get("rope_parameters") is not None else "rope_scaling"
    return ConfigReader(read.mapping(key), read.file, f"{key}.")


def parse_rope(read: ConfigReader, head_dim: int, context: int, theta: float = 10000.0) -> RopeConfig:
    """Rope settings, from the newer key if it is there.

    Args:
        read: The whole config.
        head_dim: Elements of a head, or of the part of it that is rotated.
        context: Most tokens of a sequence.
        theta: The family's own, where the config gives none.
    """
    return parse_rope_settings(read, rope_reader(read), head_dim, context, read.number("rope_theta", theta))


def parse_rope_settings(
    read: ConfigReader, rope: ConfigReader, head_dim: int, context: int, theta: float
) -> RopeConfig:
    """Rope settings of one kind of layers.

    Args:
        read: The whole config.
        rope: The settings.
        head_dim: Elements of a head, or of the part of it that is rotated.
        context: Most tokens of a sequence.
        theta: Where the settings give none.
    """
    theta = rope.number("rope_theta", theta)
    kind = rope.text("rope_type", rope.text("type", "default"))
    partial = rope.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise rope.fail("partial_rotary_factor", f"is {partial}: rotating a part of each head is not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig("linear", theta, rope.number("factor"))
    if kind == "factors":
        return RopeConfig("factors", theta, factors=_parse_factors(rope, head_dim))
    if kind == "yarn":
        return _parse_yarn(rope, theta, context)
    if kind != "llama3":
        raise rope.fail("rope_type", f"is {kind!r}; known are default, linear, llama3 and yarn")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.fail("high_freq_factor", f"must be above low_freq_factor {low}, not {high}")
    original = rope.integer(
        "original_max_position_embeddings",
        read.integer("original_max_position_embeddings", context, MAX_CONTEXT),
        MAX_CONTEXT,
    )
    return RopeConfig("llama3", theta, rope.number("factor"), low, high, original)


def _parse_yarn(rope: ConfigReader, theta: float, context: int) -> RopeConfig:
    original = rope.integer("original_max_position_embeddings", context, MAX_CONTEXT)
    factor = rope.number("factor", context / original)
    fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
    if fast <= slow:
        raise rope.fail("beta_fast", f"must be above beta_slow {slow}, not {fast}")
    scale, all_dims = (rope.config.get(key) for key in ("mscale", "mscale_all_dim"))
    if scale and all_dims:
        usual = yarn_scale(factor, rope.number("mscale")) / yarn_scale(factor, rope.number("mscale_all_dim"))
    else:
        usual = yarn_scale(factor)
    return RopeConfig(
        "yarn",
        theta,
        factor,
        original_context=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.boolean("truncate", default=True),
        attention_factor=rope.number("attention_factor", usual),
    )


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """By how much attention is sharpened when the context grows by ``factor`` (arXiv 2309.00071, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _parse_factors(rope: ConfigReader, head_dim: int) -> tuple[float, ...]:
    factors = rope.config.get("factors")
    if not isinstance(factors, list) or len(factors) != head_dim // 2:
        raise rope.fail("factors", f"must hold {head_dim // 2} numbers, one a pair of a head's elements")
    for factor in factors:
        if not isinstance(factor, float) or not math.isfinite(factor) or factor <= 0:
            raise rope.fail("factors", f"must hold finite numbers above 0, not {factor!r:.50}")
    return tuple(factors)
