"""The functions of ``headrace.h`` as a library that NumPy arrays go through, built for one set of instructions."""

import ctypes
import platform

import numpy as np

from headrace.compiler.build import HEADER
from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.cpu import cpu_features

FORMS = {
    "plain": ("-O2",),
    "avx2": ("-O2", "-mavx2", "-mfma", "-mf16c", "-mno-avx512f"),
    "avx512": (
        "-O2",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mf16c",
        "-mfma",
    ),
}
NEEDS = {
    "plain": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "f16c", "fma"},
}
UNARY = ("exp2", "log2", "sin", "sqrt", "recip", "round_bf16", "round_f16", "round_f32")
BINARY = ("max_f", "mod_f")
INTEGERS = ("max_i", "mod_i", "less_i")
ACROSS = {"sum_f32": "float", "max_f32": "float", "prod_f32": "float", "sum_i32": "int32_t", "max_i32": "int32_t"}
SINGLE = ("exp2", "log2", "sin", "sqrt", "round_bf16", "round_f16")
STORED = ("f32", "bf16", "f16")
SMALL = ("i32", "i8", "u8", "u4", "bool")


def needs_met(form):
    """Whether this processor runs a form."""
    return form == "plain" or (platform.machine() == "x86_64" and NEEDS[form] <= cpu_features().features)


def text():
    lines = ['#include "headrace.h"']

    def vectors(name, args, body):
        parameters = ", ".join(f"const {kind} *{x}" for x, kind in args)
        lines.append(
            f"void t_{name}({parameters}, void *out, int64_t n) {{ for (int64_t i = 0; i < n; i += 16) {body} }}"
        )

    for f in UNARY:
        vectors(f, [("x", "float")], f"hr_store_f32(out, i, hr_{f}(hr_load_f32(x, i)));")
    for f in SINGLE:
        vectors(f"{f}_1", [("x", "float")], f"HR_EACH hr_put_f32(out, i + lane, hr_{f}_1(x[i + lane]));")
    for f in BINARY:
        vectors(
            f, [("x", "float"), ("y", "float")], f"hr_store_f32(out, i, hr_{f}(hr_load_f32(x, i), hr_load_f32(y, i)));"
        )
        single = f"HR_EACH hr_put_f32(out, i + lane, hr_{f}_1(x[i + lane], y[i + lane]));"
        vectors(f"{f}_1", [("x", "float"), ("y", "float")], single)
    for f in INTEGERS:
        vectors(
            f,
            [("x", "int32_t"), ("y", "int32_t")],
            f"hr_store_i32(out, i, hr_{f}(hr_load_i32(x, i), hr_load_i32(y, i)));",
        )
    vectors("rint", [("x", "float")], "hr_store_i32(out, i, hr_rint(hr_load_f32(x, i)));")
    vectors("to_f32", [("x", "int32_t")], "hr_store_f32(out, i, hr_to_f32(hr_load_i32(x, i)));")
    three = [("x", "float"), ("y", "float"), ("z", "float")]
    vectors("fma", three, "hr_store_f32(out, i, hr_fma(hr_load_f32(x, i), hr_load_f32(y, i), hr_load_f32(z, i)));")
    vectors("less_f", three[:2], "hr_store_i32(out, i, hr_less_f(hr_load_f32(x, i), hr_load_f32(y, i)));")
    for f, kind in ACROSS.items():
        load = "f32" if kind == "float" else "i32"
        vectors(f, [("x", kind)], f"hr_put_{load}(out, i / 16, hr_{f}(hr_load_{load}(x, i)));")
    for d in STORED:
        vectors(f"store_{d}", [("x", "float")], f"hr_store_{d}(out, i, hr_load_f32(x, i));")
        vectors(f"put_{d}", [("x", "float")], f"HR_EACH hr_put_{d}(out, i + lane, x[i + lane]);")
        vectors(f"load_{d}", [("x", "void")], f"hr_store_f32(out, i, hr_load_{d}(x, i));")
        vectors(f"get_{d}", [("x", "void")], f"HR_EACH hr_put_f32(out, i + lane, hr_get_{d}(x, i + lane));")
    for d in SMALL:
        vectors(f"store_{d}", [("x", "int32_t")], f"hr_store_{d}(out, i, hr_load_i32(x, i));")
        vectors(f"load_{d}", [("x", "void")], f"hr_store_i32(out, i, hr_load_{d}(x, i));")
        vectors(f"gather_{d}", [("x", "void")], f"hr_store_i32(out, i, hr_gather_{d}(x, i, 1));")
        vectors(f"get_{d}", [("x", "void")], f"HR_EACH hr_put_i32(out, i + lane, hr_get_{d}(x, i + lane));")
    words = [("x", "uint8_t"), ("y", "uint8_t"), ("z", "int32_t")]
    dot4 = "hr_dot4(hr_load_i32(z, i), hr_load_words(x, 4 * i), hr_load_words(y, 4 * i))"
    vectors("dot4", words, f"hr_store_i32(out, i, {dot4});")
    dot2 = "hr_dot2(hr_load_f32(z, i), hr_load_words(x, 4 * i), hr_load_words(y, 4 * i))"
    vectors("dot2", [*words[:2], ("z", "float")], f"hr_store_f32(out, i, {dot2});")
    for high in (0, 1):
        vectors(
            f"half_{high}", words[:1], f"*(u8x64 *)((uint8_t *)out + 4 * i) = hr_half(hr_load_words(x, 4 * i), {high});"
        )
    for size in (2, 4):
        kept = f"hr_members_{size}(hr_load_words(x, 4 * i), z[0])"
        vectors(f"members_{size}", [words[0], words[2]], f"*(u8x64 *)((uint8_t *)out + 4 * i) = {kept};")
    for f in ("floor", "rest"):
        vectors(
            f, [("x", "int64_t"), ("y", "int64_t")], f"HR_EACH ((int64_t *)out)[i + lane] = hr_{f}(x[i + lane], y[0]);"
        )
    return "\n".join(lines)


class Functions:
    """``call("exp2", x)`` runs an array through a function."""

    def __init__(self, form):
        self.form = form
        source = Source("header", text(), ((HEADER.name, HEADER.read_text()),), FORMS[form])
        self.library = Builder().load(source)

    def call(self, name, *arrays, dtype=np.float32, size=None):
        count = size or len(arrays[0])
        assert count % 16 == 0
        held = [np.ascontiguousarray(a) for a in arrays]
        out = np.zeros(count, dtype)
        function = self.library[f"t_{name}"]
        function.restype = None
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*held, out)]
        function(*pointers, ctypes.c_int64(size or len(held[0])))
        return out
