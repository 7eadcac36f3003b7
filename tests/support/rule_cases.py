"""Random graphs around the left side of each rewrite rule."""

from __future__ import annotations

import math

import numpy as np

from headrace.compiler.ir import FLOATS, Builder, DType, Kind
from headrace.compiler.rules import Assumptions, Blocks

F32, F64, I32, BOOL = DType.F32, DType.F64, DType.I32, DType.BOOL
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0])


class Maker:
    """Writes a random graph, and the values of its inputs."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.values = {}
        self.sizes = {}
        self.assumptions = Assumptions()
        self.n = 0

    def one_of(self, *options):
        return options[self.rng.integers(len(options))]

    def maybe(self, chance=0.5):
        return self.rng.random() < chance

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def name(self, prefix="v"):
        self.n += 1
        return f"{prefix}{self.n}"

    def axis(self, extent=None):
        return self.b.axis(self.name("a"), extent or self.integer(2, 5))

    def axes(self, low=0, high=2):
        return [self.axis() for _ in range(self.integer(low, high))]

    def some(self, axes):
        return [a for a in axes if self.maybe(0.7)]

    def array(self, axes, dtype=F32, kind=None, low=-3, high=3, positive=False):
        """An input with exactly these axes."""
        name = self.name("x")
        axes = sorted(set(axes))
        shape = [self.b.axes[a].extent for a in axes]
        shape = [self.sizes.get(e, e) for e in shape]
        if dtype in FLOATS:
            values = self.rng.normal(0, 1, shape)
            values = np.where(self.rng.random(shape) < 0.15, self.rng.choice(SPECIAL, shape), values)
            values = np.abs(values) + 0.1 if positive else values
            self.values[name] = values.astype(np.float16 if dtype is DType.F16 else np.float32)
        elif dtype is BOOL:
            self.values[name] = self.rng.random(shape) < 0.5
        else:
            storage = {DType.U4: np.uint8, DType.U8: np.uint8, DType.I8: np.int8, I32: np.int32, DType.I64: np.int64}
            self.values[name] = self.rng.integers(low, high + 1, shape).astype(storage[dtype])
        return self.b.input(name, dtype, axes, kind or self.one_of(Kind.ARGUMENT, Kind.WEIGHT))

    def runtime(self, axes, dtype=F32, **more):
        return self.array(axes, dtype, Kind.ARGUMENT, **more)

    def weight(self, axes, dtype=F32, **more):
        return self.array(axes, dtype, Kind.WEIGHT, **more)

    def floating(self, axes, positive=False):
        """A small floating point expression with these axes at most, all of them if any."""
        b, x = self.b, self.array(axes, positive=positive)
        match self.integer(0, 4):
            case 0:
                return b.add(x, self.array(self.some(axes), positive=positive))
            case 1:
                return b.mul(x, self.array(self.some(axes), positive=positive))
            case 2 if not positive:
                return b.max(x, self.array(self.some(axes)))
            case _:
                return x

    def constant(self, low=-2.0, high=2.0):
        return self.b.const(float(self.one_of(0.5, 1.5, 0.3, self.rng.uniform(low, high))), F32)

    def number(self, value, dtype=F32):
        return self.b.const(value, dtype)

    def index(self, axes, extent, spill=1):
        """An int32 array that is mostly an index of an axis of this length."""
        return self.array(axes, I32, low=-spill, high=extent - 1 + spill)

    def affine(self, axes, factors=None):
        """A sum of constant multiples of axes' indices, in any order."""
        b = self.b
        terms = [b.mul(b.iota(a), b.const(f, I32)) if f != 1 or self.maybe() else b.iota(a)
                 for a, f in zip(axes, factors or [self.integer(1, 7) for _ in axes], strict=True)]  # fmt: skip
        if self.maybe() and factors is None:
            terms.append(b.const(self.integer(-3, 9), I32))
        self.rng.shuffle(terms)
        while len(terms) > 1:
            terms = [b.add(terms[0], terms[1]), *terms[2:]] if self.maybe() else [*terms[2:], b.add(terms[1], terms[0])]
        return terms[0] if terms else b.const(4, I32)

    def wrapped(self, node):
        """The node, or something computed from it."""
        b, kind = self.b, self.b.types[node]
        if kind.dtype is not F32 or self.maybe():
            return node
        return b.add(node, self.array(self.some(kind.axes)))

    def graph(self, root):
        return self.b.graph({"y": (root, self.b.types[root].axes)})


CASES = {}
HELPERS = {}
"""Rules that have to act before a rule finds anything."""


def case(name, *helpers):
    def register(function):
        CASES[name] = function
        HELPERS[name] = helpers
        return function

    return register


@case("order arguments", "neutral element")
def _(m):
    b = m.b
    axes = m.axes(1)
    x = m.floating(axes)
    y = m.array(m.some(axes))
    return m.one_of(b.add, b.mul, b.max)(b.mul(x, m.number(1.0)), y)


@case("fold constants")
def _(m):
    b = m.b
    if m.maybe():
        i = lambda: m.number(m.integer(-9, 9), I32)  # noqa: E731
        c = m.one_of(b.add, b.mul, b.max)(i(), m.one_of(i(), b.mod(i(), m.number(m.integer(1, 5), I32))))
        return b.add(c, m.array(m.axes(1), I32))
    f = lambda: m.number(float(m.one_of(0.5, 2.0, -4.0, 0.25, -math.inf, 0.0)), F32)  # noqa: E731
    c = m.one_of(lambda: b.max(f(), f()), lambda: b.exp2(f()), lambda: b.mul(m.number(-8.0), m.number(0.5)))()
    x = m.array(m.axes(1))
    return m.one_of(lambda: b.max(c, x), lambda: b.select(b.less(f(), f()), x, c))()


@case("fold real constants")
def _(m):
    b = m.b
    while True:
        c, d = m.rng.uniform(0.1, 3, 2)
        if np.float32(c) * np.float32(d) != np.float32(c * d):
            return m.wrapped(b.mul(m.array(m.axes(1)), b.mul(m.number(c), m.number(d))))


@case("neutral element")
def _(m):
    b, axes = m.b, m.axes(1)
    x, i = m.floating(axes), m.array(axes, I32)
    return m.wrapped(
        m.one_of(
            lambda: b.mul(x, m.number(1.0)), lambda: b.add(m.number(-0.0), x), lambda: b.add(i, m.number(0, I32)),
            lambda: b.mul(m.number(1, I32), i),
        )()
    )  # fmt: skip


@case("add zero")
def _(m):
    return m.wrapped(m.b.add(m.floating(m.axes()), m.number(0.0)))


@case("negative twice")
def _(m):
    b, minus = m.b, m.number(-1.0)
    return m.wrapped(b.mul(b.mul(m.floating(m.axes()), minus), minus))


@case("join constants")
def _(m):
    b, x = m.b, m.floating(m.axes())
    op = m.one_of(b.add, b.mul)
    return m.wrapped(op(m.constant(), op(x, m.constant())))


@case("lift constant factor")
def _(m):
    b, axes = m.b, m.axes(1)
    return m.wrapped(b.mul(m.array(m.some(axes)), b.mul(m.floating(axes), m.constant())))


@case("scale both terms")
def _(m):
    b, axes = m.b, m.axes(1)
    return m.wrapped(b.mul(b.add(m.array(m.some(axes)), m.floating(axes)), m.constant()))


@case("decide comparison")
def _(m):
    b, a = m.b, m.axis()
    extent = b.axes[a].extent
    yes = b.less(b.iota(a), m.number(extent + m.integer(0, 2), I32))
    no = b.less(b.mul(b.iota(a), m.number(2, I32)), m.number(-m.integer(0, 2), I32))
    x, y = m.floating([a]), m.floating([a])
    return b.select(m.one_of(yes, no), x, y)


@case("known selection")
def _(m):
    b, axes = m.b, m.axes(1)
    x = m.floating(axes)
    same = lambda: b.select(m.array(m.some(axes), BOOL), x, x)  # noqa: E731
    return m.wrapped(m.one_of(same, lambda: b.select(m.number(m.maybe(), BOOL), x, m.array(m.some(axes))))())


@case("cast to itself")
def _(m):
    b, axes = m.b, m.axes(1)
    narrow, wide = m.one_of((DType.U8, I32), (DType.I8, F32), (DType.F16, F32), (DType.U4, I32))
    x = m.array(axes, narrow, low=0, high=15)
    back = b.cast(b.cast(x, wide), narrow)
    same = b.cast(m.floating(axes), F32)
    return m.one_of(b.add(b.cast(back, F32), same), b.mul(b.cast(back, F32), m.array(axes)))


@case("larger of one")
def _(m):
    x = m.floating(m.axes())
    return m.wrapped(m.b.max(x, x))


@case("reciprocal twice")
def _(m):
    return m.wrapped(m.b.recip(m.b.recip(m.floating(m.axes(), positive=True))))


@case("reciprocal of root")
def _(m):
    return m.wrapped(m.b.sqrt(m.b.recip(m.floating(m.axes(), positive=True))))


@case("order sum")
def _(m):
    b, axes = m.b, m.axes(2, 3)
    first = m.affine(axes)
    again = b.add(b.mul(m.number(m.integer(2, 5), I32), first), b.add(m.affine(axes), m.number(m.integer(-4, 4), I32)))
    if m.maybe(0.3):
        n = m.integer(2, 3)
        a = axes[0]
        again = b.add(again, b.add(b.mod(b.iota(a), m.number(n, I32)), b.mul(b.iota(a, n), m.number(n, I32))))
    if m.maybe(0.5):
        again = b.add(b.add(again, m.array(axes[:1], I32)), first)
    return again


@case("reduce remainder")
def _(m):
    b, inner, outer = m.b, m.axis(), m.axis()
    n = b.axes[inner].extent
    x = m.affine([outer, inner], [n * m.integer(1, 3), 1])
    if m.maybe():
        x = b.add(x, m.number(n * m.integer(-2, 2), I32))
    if m.maybe(0.3):
        x = b.mod(m.array([inner, outer], I32, low=-20, high=20), m.number(n * m.integer(2, 3), I32))
    return b.mod(x, m.number(n, I32))


@case("index of index")
def _(m):
    b, inner, outer = m.b, m.axis(), m.axis()
    n, count = b.axes[inner].extent, b.axes[outer].extent
    whole = m.axis(n * count)
    place = m.affine([outer, inner], [n, 1])
    divisor = m.one_of(1, n, n, m.integer(1, 6))
    if m.maybe(0.3):
        half = m.axis(-(-n * count // 2))
        return b.gather(b.iota(half, divisor), {half: b.gather(b.iota(whole, 2), {whole: place})})
    return b.gather(b.iota(whole, divisor), {whole: place})


@case("only integer")
def _(m):
    b, a = m.b, m.axis()
    extent = b.axes[a].extent
    x = m.one_of(b.iota(a, extent + m.integer(0, 2)), b.mul(b.iota(a, extent), b.iota(m.axis())))
    return b.add(x, m.array([a], I32))


@case("select all")
def _(m):
    b, a = m.b, m.axis()
    rest = m.axes()
    index = {a: b.iota(a)}
    if rest and m.maybe():
        index[rest[0]] = m.index(m.axes(), b.axes[rest[0]].extent)
    return m.wrapped(b.gather(m.floating([a, *rest]), index))


@case("compose selections")
def _(m):
    b, a, c = m.b, m.axis(), m.axis()
    rest = m.axes()
    middle = m.axis()
    x = b.gather(m.floating([a, c, *rest]), {a: m.index(m.one_of([middle], [middle, *rest]), b.axes[a].extent)})
    outer = m.one_of([], m.axes(1, 1), [a], rest)
    index = {middle: m.index(outer, b.axes[middle].extent)}
    if m.maybe():
        index[c] = m.index(m.one_of(outer, [middle], [c]), b.axes[c].extent)
    return m.wrapped(b.gather(x, index))


@case("select from elementwise")
def _(m):
    b, a = m.b, m.axis(5)
    rest = m.axes(1)
    target = m.one_of([], [a], [m.axis(4)], rest[:1])
    if rest and b.axes[rest[0]].extent > 5:
        target = []
    x, y = m.runtime([a, *rest]), m.array(m.some([a, *rest]))
    f = m.one_of(lambda: b.add(x, y), lambda: b.max(y, x), lambda: b.exp2(x), lambda: b.cast(x, F64),
                 lambda: b.select(b.less(x, y), y, x), lambda: b.mul(b.cast(b.iota(a), F32), x))()  # fmt: skip
    return b.gather(f, {a: m.index(target, 5)})


@case("select from fold")
def _(m):
    b, k, n = m.b, m.axis(), m.axis(6)
    rest = m.axes(0, 1)
    target = m.one_of(
        [m.axis(3), m.axis(2)], [k], [m.axis()], [k, rest[0]] if rest and b.axes[rest[0]].extent == 1 else [k]
    )
    x, w = m.runtime([k, *rest]), m.weight([n, k])
    bound = m.array(m.some(rest), I32, low=0, high=5) if m.maybe() else None
    y = b.fold(m.one_of("sum", "max"), k, b.mul(x, w), bound)
    return b.gather(y, {n: m.index(target, 6)})


@case("refine selection")
def _(m):
    b, outer, inner = m.b, m.axis(), m.axis(4)
    n = m.axis(4 * b.axes[outer].extent)
    x = m.runtime([n, *m.axes(0, 1)])
    d, base = b.iota(inner), b.mul(b.iota(outer), m.number(4, I32))
    first = b.gather(x, {n: b.add(base, d)})
    half = b.mod(d, m.number(2, I32))
    other = m.one_of(half, b.add(half, m.number(2, I32)), b.mod(b.add(d, m.number(1, I32)), m.number(4, I32)))
    return b.add(first, b.gather(x, {n: b.add(base, other)}))


@case("move common factor out")
def _(m):
    b, k = m.b, m.axis()
    rest = m.axes(1)
    x = m.runtime([k, *m.some(rest)])
    if m.maybe():
        body = b.mul(b.mul(x, m.weight([k])), m.weight([k, *m.some(rest)]))
    else:
        factors = [x, m.array(m.some(rest)), *(m.runtime([k, *m.some(rest)]) for _ in range(m.integer(0, 2)))]
        m.rng.shuffle(factors)
        while len(factors) > 1:
            rest_of, product = factors[2:], b.mul(factors[0], factors[1])
            factors = [product, *rest_of] if m.maybe() else [*rest_of, product]
        (body,) = factors
    bound = m.array(m.some(rest), I32, low=0, high=5) if m.maybe() else None
    return m.wrapped(b.fold("sum", k, body, bound))


@case("move constant into sum")
def _(m):
    b, k = m.b, m.axis()
    bound = m.array([], I32, low=0, high=5) if m.maybe() else None
    return m.wrapped(b.mul(m.constant(), b.fold("sum", k, m.floating([k, *m.axes()]), bound)))


@case("sum of one value", "known selection")
def _(m):
    b, k = m.b, m.axis()
    x = m.floating(m.axes())
    wide = b.select(m.number(True, BOOL), x, m.array([k]))
    return m.wrapped(b.fold("sum", k, wide))


@case("sum of sums")
def _(m):
    b, k = m.b, m.axis()
    rest = m.axes()
    return m.wrapped(b.fold("sum", k, b.add(m.weight([k, *m.some(rest)]), m.runtime([k, *rest]))))


@case("exchange folds")
def _(m):
    b, k, j = m.b, m.axis(), m.axis()
    reducer = m.one_of("sum", "max")
    return m.wrapped(b.fold(reducer, k, b.fold(reducer, j, m.floating([k, j, *m.axes()]))))


@case("cut into blocks")
def _(m):
    b, size, count = m.b, m.integer(4, 5), m.integer(2, 3)
    k = m.axis(size * count)
    outer = b.axis(m.one_of("kb", f"{k}_block"), count)
    inner = b.axis(m.one_of("ki", f"{k}_inner"), size)
    rest = m.axes()
    index = {outer: b.iota(k, size), inner: b.mod(b.iota(k), m.number(size, I32))}
    coded = b.gather(m.floating([outer, inner, *m.some(rest)]), index)
    other = m.runtime([k, *m.some(rest), *([outer] if m.maybe(0.2) else [])])
    return m.wrapped(b.fold(m.one_of("sum", "sum", "max"), k, b.mul(coded, other)))


def _coded(m, axes, k, dtype, kind):
    """Codes along k, as ``scale * codes + offset`` with either left out."""
    b = m.b
    low, high = {DType.U4: (0, 15), DType.I8: (-128, 127), DType.U8: (0, 255)}[dtype]
    codes = b.cast(m.array([*axes, k], dtype, kind, low=low, high=high), F32)
    scale, offset = m.maybe(0.8), m.maybe(0.7)
    if scale:
        codes = b.mul(m.array(axes, F32, kind), codes)
    if offset:
        codes = b.add(codes, m.array(axes, F32, kind))
    return codes, offset


@case("product of codes")
def _(m):
    b, k, t, n = m.b, m.axis(8), m.axis(), m.axis()
    while True:
        left, a = _coded(m, [t], k, DType.I8, Kind.ARGUMENT)
        right, c = _coded(m, [n], k, m.one_of(DType.U4, DType.U8, DType.I8), Kind.WEIGHT)
        if a or c:
            return m.wrapped(b.fold("sum", k, b.mul(left, right)))


@case("sum in integers")
def _(m):
    b, k, t, n = m.b, m.axis(m.integer(2, 9)), m.axis(), m.axis()
    codes = [
        b.cast(m.runtime([t, k], DType.I8, low=-128, high=127), F32),
        b.cast(m.array([n, k], DType.U4, low=0, high=15), F32),
    ]
    body = b.mul(*codes) if m.maybe(0.7) else m.one_of(*codes)
    return m.wrapped(b.fold("sum", k, body))


def _masked(m, axes, value, x=None):
    return m.b.select(m.array(m.some(axes), BOOL), m.number(value), m.floating(axes) if x is None else x)


def _finite(m, node):
    """What a mask of -inf comes to in the end."""
    return m.b.max(m.b.exp2(node), m.number(0.0))


@case("mask of sum")
def _(m):
    b, axes = m.b, m.axes(1)
    return _finite(m, b.add(m.array(m.some(axes)), _masked(m, axes, -math.inf)))


@case("mask of product")
def _(m):
    b, axes = m.b, m.axes(1)
    if m.maybe():
        return _finite(m, b.mul(_masked(m, axes, -math.inf), m.number(m.rng.uniform(0.1, 2))))
    return b.mul(_masked(m, axes, 0.0), m.array(m.some(axes)))


@case("mask of power")
def _(m):
    return m.wrapped(m.b.exp2(_masked(m, m.axes(1), -math.inf)))


@case("mask of cast")
def _(m):
    masked = m.b.cast(_masked(m, m.axes(1), m.one_of(0.0, -math.inf)), m.one_of(DType.BF16, DType.F16, F64))
    return m.b.exp2(m.b.cast(masked, F32))


@case("mask to bound")
def _(m):
    b, k = m.b, m.axis()
    rest = m.axes(1)
    limit = m.array(m.some(rest), I32, low=-1, high=6)
    reducer, neutral = m.one_of(("max", -math.inf), ("sum", 0.0), ("prod", 1.0))
    x = m.floating([k, *rest])
    kept = (
        b.select(b.less(limit, b.iota(k)), m.number(neutral), x),
        b.select(b.less(b.iota(k), limit), x, m.number(neutral)),
    )
    y = b.fold(reducer, k, m.one_of(*kept))
    return b.exp2(y) if reducer == "max" else y


@case("scale before maximum")
def _(m):
    b, k = m.b, m.axis()
    bound = m.array([], I32, low=1, high=5) if m.maybe() else None
    factor = m.one_of(m.rng.uniform(0.1, 3), -m.rng.uniform(0.1, 3))
    return m.wrapped(b.mul(b.fold("max", k, m.floating([k, *m.axes()]), bound), m.number(float(factor))))


def _positions(m):
    """A long axis, and positions on it."""
    b = m.b
    size = m.integer(2, 5)
    m.sizes["S"] = m.integer(1, 12)
    blocks = Blocks("S", size, "NB")
    m.sizes.update(blocks.of(m.sizes))
    s, t = b.axis("position", "S"), m.axis()
    at = m.runtime([t], I32, low=0, high=m.sizes["S"] - 1)
    m.assumptions = Assumptions({b.inputs[next(reversed(b.inputs))].name: "position"}, (blocks,))
    return s, t, at


def _along(m, s, axes):
    """Something that differs along the positions."""
    b = m.b
    page, slot = m.axis(), m.axis()
    paged = b.gather(m.runtime([page, slot, *axes]), {
        page: b.mod(b.iota(s, b.axes[slot].extent), m.number(b.axes[page].extent, I32)),
        slot: b.mod(b.iota(s), m.number(b.axes[slot].extent, I32)),
    })  # fmt: skip
    k = m.axis()
    return m.one_of(
        lambda: m.runtime([s, *axes]), lambda: paged, lambda: b.add(paged, m.array(axes)),
        lambda: b.fold("sum", k, b.mul(m.array([k]), m.runtime([s, k, *axes]))),
    )()  # fmt: skip


@case("cut long fold")
def _(m):
    b = m.b
    s, t, at = _positions(m)
    x = _along(m, s, m.some([t]))
    return b.fold(m.one_of("sum", "max", "prod"), s, x, b.add(at, m.number(1, I32)))


@case("online softmax", "cut long fold")
def _(m):
    b = m.b
    s, t, at = _positions(m)
    x = _along(m, s, [t])
    bound = b.add(at, m.number(1, I32))
    most = b.fold("max", s, x, bound)
    p = b.exp2(b.add(x, b.mul(m.number(-1.0), most)))
    if m.maybe():
        p = b.mul(p, _along(m, s, m.some([t, m.axis()])))
    return b.fold("sum", s, p, bound)


@case("merge products")
def _(m):
    b, k = m.b, m.axis()
    x = m.runtime([k, *m.axes(0, 1)])
    products = [b.fold("sum", k, b.mul(x, m.weight([k, m.axis()]))) for _ in range(m.integer(2, 3))]
    return b.add(b.exp2(products[0]), products[-1]) if m.maybe() else b.max(b.add(*products[:2]), products[-1])
