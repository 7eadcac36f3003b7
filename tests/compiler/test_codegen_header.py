"""``headrace.h``: each function against NumPy or exact arithmetic, in every form that this processor runs."""

import functools

import header_functions
import numpy as np
import pytest

from headrace.compiler.interpret import round_bf16

SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 65519, 65520], np.float32
)


@functools.cache
def functions(form):
    if not header_functions.needs_met(form):
        pytest.skip(f"this processor has no {form}")
    return header_functions.Functions(form)


@pytest.fixture(params=list(header_functions.FORMS))
def form(request):
    return functions(request.param)


def numbers(count=4096, scale=100.0, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([SPECIAL, (rng.standard_normal(count) * scale).astype(np.float32)])


def no_denormals(x):
    """Zeros where the instructions that round to bfloat16 take numbers for zeros."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def bits(x):
    return np.ascontiguousarray(x).view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize])


def same(a, b):
    """Bit for bit, but for which NaN it is."""
    assert a.dtype == b.dtype
    nan = np.isnan(a)
    assert np.array_equal(nan, np.isnan(b))
    assert np.array_equal(bits(a)[~nan], bits(b)[~nan])


def test_exp2(form):
    x = np.concatenate([np.linspace(-149.5, 128, 160_000), np.linspace(-1, 1, 40_000)]).astype(np.float32)
    found, real = form.call("exp2", x), np.exp2(x.astype(np.float64))
    ulp = np.spacing(np.clip(real, 2.0**-126, 3e38).astype(np.float32)).astype(np.float64)
    normal = real < 3.4e38
    assert (np.abs(found - real) / ulp)[normal].max() < 1.01
    assert np.array_equal(found[~normal], np.full((~normal).sum(), np.inf, np.float32))
    whole = np.arange(-149, 128, dtype=np.float32)[: 16 * 17]
    assert np.array_equal(form.call("exp2", whole), np.exp2(whole))
    edges = np.array([-np.inf, np.inf, np.nan, -151, -1000, 1000, 128, -0.0] * 2, np.float32)
    assert np.array_equal(
        form.call("exp2", edges), np.array([0, np.inf, np.nan, 0, 0, np.inf, np.inf, 1] * 2, np.float32), equal_nan=True
    )


@pytest.mark.parametrize("name", ["sqrt", "recip"])
def test_correctly_rounded(form, name):
    with np.errstate(all="ignore"):
        same(form.call(name, numbers()), {"sqrt": np.sqrt, "recip": np.reciprocal}[name](numbers()))


@pytest.mark.parametrize("name", ["sin", "log2"])
def test_from_the_system(form, name):
    x = np.abs(numbers()) if name == "log2" else numbers()
    with np.errstate(all="ignore"):
        assert np.allclose(form.call(name, x), getattr(np, name)(x), rtol=3e-7, atol=1e-7, equal_nan=True)


def test_halves_are_rounded_to_even(form):
    ties = np.array(
        [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8), 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25] * 2
    )
    x = np.concatenate([ties.astype(np.float32), numbers(), numbers(scale=1e-6), numbers(scale=1e38)])
    same(form.call("round_bf16", x), round_bf16(no_denormals(x) if form.form == "avx512" else x))
    with np.errstate(all="ignore"):
        same(form.call("round_f16", x), x.astype(np.float16).astype(np.float32))
    payload = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7F80FFFF] * 4, np.uint32).view(np.float32)
    for kind in ("store", "put"):
        kept = form.call(f"{kind}_bf16", form.call("round_bf16", payload), dtype=np.uint16)
        assert np.isnan((kept.astype(np.uint32) << 16).view(np.float32)).all(), "a NaN must not become infinity"


def test_to_integers(form):
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 3.49, -3.51, 1e9, -(2.0**31), 8388607.5, 0, 7, -7, 2**23 + 1, 0.49999997, -2.5],
        np.float32,
    )
    assert np.array_equal(form.call("rint", x, dtype=np.int32), np.rint(x).astype(np.int32))
    same(form.call("round_f32", numbers()), np.rint(numbers()))
    whole = np.array([0, 1, -1, 2**24 + 1, -(2**31), 2**31 - 1, 33554435, 7] * 2, np.int32)
    same(form.call("to_f32", whole), whole.astype(np.float32))


def pairs():
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    return a.ravel().copy(), b.ravel().copy()


def test_maximum_of_a_nan_is_one(form):
    a, b = pairs()
    found = form.call("max_f", a, b)
    assert np.array_equal(found, np.maximum(a, b), equal_nan=True)
    assert np.array_equal(form.call("max_f_1", a, b), found, equal_nan=True)


def test_remainders_have_the_divisors_sign(form):
    a, b = pairs()
    rng = np.random.default_rng(0)
    a = np.concatenate([a, (rng.standard_normal(1024) * 50).astype(np.float32)])
    b = np.concatenate([b, rng.choice(np.array([3, -3, 0.5, -7.25], np.float32), 1024)])
    with np.errstate(all="ignore"):
        expected = np.mod(a, b)
    assert np.array_equal(form.call("mod_f", a, b), expected, equal_nan=True)
    x = np.array([7, -7, 7, -7, 0, 5, -(2**31), 2**31 - 1, -(2**31), 1, -1, 6, -6, 6, -6, 0], np.int32)
    y = np.array([3, 3, -3, -3, 4, 0, -1, 2, 7, -5, 5, 3, 3, -3, -3, 0], np.int32)
    with np.errstate(all="ignore"):
        assert np.array_equal(form.call("mod_i", x, y, dtype=np.int32), np.mod(x, y))
    assert np.array_equal(form.call("max_i", x, y, dtype=np.int32), np.maximum(x, y))
    assert np.array_equal(form.call("less_i", x, y, dtype=np.int32), -(x < y).astype(np.int32))


@pytest.mark.parametrize("divisor", [1, 3, 16, 255])
def test_indices_are_rounded_down(form, divisor):
    x = np.array([0, 1, -1, 15, 16, 17, -15, -16, -17, 10**12, -(10**12), 255, -255, 3, -3, 2], np.int64)
    y = np.full(16, divisor, np.int64)
    assert np.array_equal(form.call("floor", x, y, dtype=np.int64), x // divisor)
    assert np.array_equal(form.call("rest", x, y, dtype=np.int64), x % divisor)


def test_fma_rounds_once(form):
    """Against rational arithmetic in float64: products of float32 are exact there, and sums of these magnitudes too."""
    rng = np.random.default_rng(0)
    x, y = (1 + rng.integers(0, 2**20, 4096) / 2**20 for _ in range(2))
    z = -np.round(x * y, 4)
    x, y, z = (v.astype(np.float32) for v in (x, y, z))
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    assert np.array_equal(form.call("fma", x, y, z), exact.astype(np.float32))


def test_products_of_groups_of_bytes(form):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.full(64, 255), np.full(64, 255), rng.integers(0, 256, 4096)]).astype(np.uint8)
    y = np.concatenate([np.full(64, -128), np.full(64, 127), rng.integers(-128, 128, 4096)]).astype(np.int8)
    z = rng.integers(-(2**30), 2**30, len(x) // 4).astype(np.int32)
    expected = z + (x.astype(np.int32) * y.astype(np.int32)).reshape(-1, 4).sum(1)
    assert np.array_equal(form.call("dot4", x, y, z, dtype=np.int32, size=len(z)), expected)


def test_products_of_pairs_of_bfloat16(form):
    rng = np.random.default_rng(0)
    x, y = (round_bf16(rng.standard_normal(2048)) for _ in range(2))
    z = rng.standard_normal(1024).astype(np.float32)
    raw = [(bits(v) >> 16).astype(np.uint16) for v in (x, y)]
    exact = z + (x.astype(np.float64) * y).reshape(-1, 2).sum(1)
    assert np.abs(form.call("dot2", *raw, z, size=1024) - exact).max() < 1e-6


def test_halves_and_members_of_groups(form):
    x = np.arange(256, dtype=np.uint8)
    for high in (0, 1):
        found = form.call(f"half_{high}", x, dtype=np.int32, size=64).view(np.uint8)
        assert np.array_equal(found, x >> 4 * high & 15)
    for size in (2, 4):
        for count in range(-2, 7):
            wanted = x.copy().reshape(-1, size, 4 // size)
            wanted[:, max(count, 0) :] = 0
            found = functions_bytes(form, f"members_{size}", x, count)
            assert np.array_equal(found, wanted.reshape(-1))


def functions_bytes(form, name, x, count):
    return form.call(name, x, np.full(16, count, np.int32), dtype=np.int32, size=len(x) // 4).view(np.uint8)


def tree(x, op):
    """Neighbours at distance 8, 4, 2, 1."""
    for distance in (8, 4, 2, 1):
        x = op(x[:, :distance], x[:, distance : 2 * distance])
    return x[:, 0]


@pytest.mark.parametrize(("name", "op"), [("sum_f32", np.add), ("max_f32", np.maximum), ("prod_f32", np.multiply)])
def test_across_lanes_in_one_order_everywhere(form, name, op):
    x = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    x[17], x[32:36], x[48:64] = np.nan, np.inf, -np.inf
    found = form.call(name, x)[: len(x) // 16]
    assert np.array_equal(found, tree(x.reshape(-1, 16), op), equal_nan=True)


@pytest.mark.parametrize(("name", "op"), [("sum_i32", np.add), ("max_i32", np.maximum)])
def test_integers_across_lanes(form, name, op):
    x = np.random.default_rng(0).integers(-(2**26), 2**26, 1024).astype(np.int32)
    assert np.array_equal(form.call(name, x, dtype=np.int32)[: len(x) // 16], op.reduce(x.reshape(-1, 16), 1))


def test_memory(form):
    x = numbers(1008)
    for dtype in ("f32", "bf16", "f16"):
        raw = np.uint32 if dtype == "f32" else np.uint16
        value = form.call(f"round_{dtype}", x) if dtype != "f32" else x
        stored = [form.call(f"{kind}_{dtype}", value, dtype=raw) for kind in ("store", "put")]
        back = [form.call(f"{kind}_{dtype}", stored[0]) for kind in ("load", "get")]
        assert np.array_equal(*stored)
        same(back[0], back[1])
        same(back[0], value)
    for dtype, kind in (("i32", np.int32), ("i8", np.int8), ("u8", np.uint8), ("u4", np.uint8), ("bool", np.uint8)):
        small = np.arange(256) % (16 if dtype == "u4" else 2 if dtype == "bool" else 256)
        whole = small.astype(kind).astype(np.int32)
        stored = form.call(f"store_{dtype}", -whole if dtype == "bool" else whole, dtype=kind)
        assert np.array_equal(stored, whole.astype(kind))
        wide = -whole if dtype == "bool" else whole  # a condition in a vector is all bits
        assert np.array_equal(form.call(f"load_{dtype}", stored, dtype=np.int32), wide)
        assert np.array_equal(form.call(f"gather_{dtype}", stored, dtype=np.int32), wide)
        assert np.array_equal(form.call(f"get_{dtype}", stored, dtype=np.int32), whole)


@pytest.mark.parametrize("other", ["avx2", "avx512"])
def test_every_form_is_the_plain_one_bit_for_bit(other):
    plain, form = functions("plain"), functions(other)
    x = np.concatenate([numbers(), numbers(scale=1), np.linspace(-150, 129, 32_000).astype(np.float32)])
    y = np.roll(x, 7)
    for name in (*header_functions.UNARY, *(f"{n}_1" for n in header_functions.SINGLE)):
        given = no_denormals(x) if name.startswith("round_bf16") else x
        same(form.call(name, given), plain.call(name, given))
    for name in header_functions.BINARY:
        same(form.call(name, x, y), plain.call(name, x, y))
    for name in ("sum_f32", "max_f32", "prod_f32"):
        same(form.call(name, x), plain.call(name, x))
    same(form.call("fma", x, y, np.roll(x, 3)), plain.call("fma", x, y, np.roll(x, 3)))
