"""Functions of one argument: powers, exponentials, logarithms, waves, rounding."""

from __future__ import annotations

import math
from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.elementwise import floating, unary
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import FLOATS

aten = torch.ops.aten
LOG2_E = math.log2(math.e)
MOST_MULTIPLICATIONS = 16  # of a power with an integer exponent


def power(c: Context, x: Value, exponent: Value) -> Array:
    """A power with a constant exponent."""
    if isinstance(exponent, Array | torch.SymInt):
        raise Refused("the exponent is not a constant")
    (node,), dims = c.operands(x)
    whole = float(exponent).is_integer()
    if whole and abs(exponent) <= MOST_MULTIPLICATIONS:
        raised = _multiply(c, node, abs(int(exponent)))
        if exponent >= 0:
            return Array(raised, dims)
        if c.dtype in FLOATS:
            return Array(c.draft.recip(raised), dims)
    if whole or c.dtype not in FLOATS:
        raise Refused(f"the exponent is {exponent}")
    if abs(exponent) == 0.5:
        root = c.draft.sqrt(node)
        return Array(root if exponent > 0 else c.draft.recip(root), dims)
    return Array(c.draft.exp2(c.draft.mul(c.draft.log2(node), c.number(exponent, c.dtype))), dims)


def _multiply(c: Context, x: int, times: int) -> int:
    """A power by repeated squaring."""
    result = c.draft.const(1, c.draft.dtype(x))
    while times:
        result = c.draft.mul(result, x) if times % 2 else result
        times //= 2
        x = c.draft.mul(x, x) if times else x
    return result


def scalar_power(c: Context, base: float, exponent: Value) -> Array:
    """A constant to the power of a tensor."""
    (node,), dims = c.operands(exponent)
    if base <= 0 or c.dtype not in FLOATS:
        raise Refused(f"the base is {base}")
    return Array(c.draft.exp2(c.draft.mul(node, c.number(math.log2(base), c.dtype))), dims)


def exp(c: Context, x: int) -> int:
    """e to the power of x."""
    return c.draft.exp2(c.draft.mul(x, c.draft.const(LOG2_E, c.draft.dtype(x))))


def _log(factor: float) -> Any:
    return lambda c, x: c.draft.mul(c.draft.log2(x), c.draft.const(factor, c.draft.dtype(x)))


def sigmoid(c: Context, x: int) -> int:
    """``1 / (1 + exp(-x))``."""
    d = c.draft
    shrunk = d.exp2(d.mul(x, d.const(-LOG2_E, d.dtype(x))))
    return d.recip(d.add(shrunk, d.const(1, d.dtype(x))))


def _tanh(c: Context, x: int) -> int:
    """``1 - 2 / (1 + exp(2 x))``: exact in both limits."""
    d, dtype = c.draft, c.draft.dtype(x)
    grown = d.exp2(d.mul(x, d.const(2 * LOG2_E, dtype)))
    rest = d.recip(d.add(grown, d.const(1, dtype)))
    return d.add(d.const(1, dtype), d.mul(rest, d.const(-2, dtype)))


def _cos(c: Context, x: int) -> int:
    """``1 - 2 sin(x / 2)^2``: x + pi / 2 would lose the low bits of large angles, x / 2 loses none.

    Within 2e-7 of the cosine, which is not enough where one divides by it: there is no tangent.
    """
    d, dtype = c.draft, c.draft.dtype(x)
    half = d.sin(d.mul(x, d.const(0.5, dtype)))
    return d.add(d.const(1, dtype), d.mul(d.mul(half, half), d.const(-2, dtype)))


def _silu(c: Context, x: int) -> int:
    return c.draft.mul(x, sigmoid(c, x))


def _sign(c: Context, x: int) -> int:
    d, dtype = c.draft, c.draft.dtype(x)
    zero = d.const(0, dtype)
    return d.select(d.less(x, zero), d.const(-1, dtype), d.select(d.less(zero, x), d.const(1, dtype), zero))


def _ceil(c: Context, x: int) -> int:
    return values.negate(c.draft, values.floor(c.draft, values.negate(c.draft, x)))


def _round(c: Context, x: int) -> int:
    """The nearest integer, ties to even."""
    d, dtype = c.draft, c.draft.dtype(x)
    below, half = values.floor(d, x), d.const(0.5, dtype)
    over = d.add(x, values.negate(d, below))
    odd = d.less(half, d.mod(below, d.const(2, dtype)))
    tie = values.both(d, values.invert(d, d.less(over, half)), odd)
    return d.select(values.either(d, d.less(half, over), tie), d.add(below, d.const(1, dtype)), below)


TABLE: dict[Any, Lower] = {
    aten.pow.Tensor_Scalar: power,
    aten.pow.Scalar: scalar_power,
    aten.sign.default: unary(_sign),
    aten.exp.default: unary(floating(exp)),
    aten.exp2.default: unary(floating(lambda c, x: c.draft.exp2(x))),
    aten.log.default: unary(floating(_log(math.log(2)))),
    aten.log2.default: unary(floating(lambda c, x: c.draft.log2(x))),
    aten.log10.default: unary(floating(_log(math.log10(2)))),
    aten.sqrt.default: unary(floating(lambda c, x: c.draft.sqrt(x))),
    aten.rsqrt.default: unary(floating(lambda c, x: c.draft.recip(c.draft.sqrt(x)))),
    aten.reciprocal.default: unary(floating(lambda c, x: c.draft.recip(x))),
    aten.sin.default: unary(floating(lambda c, x: c.draft.sin(x))),
    aten.cos.default: unary(floating(_cos)),
    aten.tanh.default: unary(floating(_tanh)),
    aten.sigmoid.default: unary(floating(sigmoid)),
    aten.silu.default: unary(floating(_silu)),
    aten.floor.default: unary(floating(lambda c, x: values.floor(c.draft, x))),
    aten.ceil.default: unary(floating(_ceil)),
    aten.trunc.default: unary(floating(lambda c, x: values.truncate(c.draft, x))),
    aten.round.default: unary(floating(_round)),
}
