"""Pieces of C text."""

from __future__ import annotations

import math

from headrace.compiler.codegen.nest import Level, LevelKind
from headrace.compiler.ir import FLOATS, DType, Node, Op

C_SCALAR = {"f": "float", "i": "int32_t", "b": "int32_t"}
C_VECTOR = {"f": "f32x16", "i": "i32x16", "b": "i32x16"}
GROUP_SCALAR, GROUP_VECTOR = "int32_t", "u8x64"


def literal(node: Node) -> str:
    """A constant."""
    value, dtype = node.attrs
    if DType(str(dtype)) not in FLOATS:
        return str(value)
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return "(0.0f / 0.0f)"
    if number in (float("inf"), float("-inf")):
        return "HR_INFINITY" if number > 0 else "-HR_INFINITY"
    return f"{float(number).hex()}f"


def suffix(name: str, wide: bool) -> str:
    """The function's form for vectors, or for one value."""
    return name if wide else f"{name}_1"


def operation(op: Op, values: list[str], rep: str, wide: bool) -> str:
    """An operation of one or two arguments."""
    match op:
        case Op.ADD:
            return f"{values[0]} + {values[1]}"
        case Op.MUL:
            return f"{values[0]} * {values[1]}"
        case Op.RECIP if not wide:
            return f"1.0f / {values[0]}"
        case Op.LESS if not wide:
            return f"{values[0]} < {values[1]}"
    name = f"hr_{op}" if op in (Op.EXP2, Op.LOG2, Op.SIN, Op.SQRT, Op.RECIP) else f"hr_{op}_{rep}"
    return f"{suffix(name, wide)}({', '.join(values)})"


def neutral(reducer: str, rep: str, wide: bool) -> str:
    """What a fold begins with."""
    value = {"sum": "0", "prod": "1"}.get(reducer, "-HR_INFINITY" if rep == "f" else "INT32_MIN")
    return f"hr_splat_{'f32' if rep == 'f' else 'i32'}({value})" if wide else value


def around(levels: tuple[Level, ...], lines: list[str]) -> list[str]:
    """Lines inside of loops."""
    for level in reversed(levels):
        lines = loop(level, level.steps or str(level.count), lines)
    return lines


def loop(level: Level, trips: str, body: list[str]) -> list[str]:
    """Lines inside of a loop."""
    head = f"for (int {level.variable} = 0; {level.variable} < {trips}; {level.variable}++) {{"
    pragma = [f"HR_UNROLL({level.count})"] if level.kind is LevelKind.UNROLL else []
    return [*pragma, head, *(f"    {line}" for line in body), "}"]
