"""Graphs written by hand, in the form that rules bring a captured one to."""

from headrace.compiler.ir import Builder, DType, Kind, Write

F = DType.F32
BF = DType.BF16


def layer(hidden=576, kv_heads=3, group=3, head_dim=64, ffn=1536, block=256, eps=1e-5, bits=DType.U4):
    """A Llama layer with 4-bit weights, 8-bit activations, and attention in bfloat16 over pages of 16 tokens."""
    H, G, E, D, FF, BL = hidden, kv_heads, group, head_dim, ffn, block
    b = Builder()
    KB = H // 32
    FB = FF // 32
    for a, e in dict(
        token="T",
        row="B",
        hidden=H,
        kv_head=G,
        group=E,
        head_dim=D,
        ffn=FF,
        kb=KB,
        ki=32,
        fb=FB,
        fi=32,
        block="NB",
        pi=BL,
        page="PAGES",
        slot=16,
        p="P",
        position="S",
    ).items():
        b.axis(a, e, "row" if a == "token" else "")
    I = lambda v: b.const(v, DType.I32)
    C = lambda v: b.const(v, F)
    f = lambda v: b.cast(v, F)
    i = lambda v: b.cast(v, DType.I32)
    neg = lambda v: b.mul(C(-1), v)
    x = b.input("x", F, ["token", "hidden"], Kind.VALUE)
    cos = b.input("cos", F, ["token", "head_dim"], Kind.VALUE)
    sin = b.input("sin", F, ["token", "head_dim"], Kind.VALUE)
    row = b.input("row", DType.I32, ["token"])
    pos = b.input("positions", DType.I32, ["token"])
    table = b.input("pages", DType.I32, ["row", "p"])
    b.state("keys", BF, ["page", "slot", "kv_head", "head_dim"])
    b.state("values", BF, ["page", "slot", "kv_head", "head_dim"])

    def norm(x, name):
        w = b.input(name, F, ["hidden"], Kind.WEIGHT)
        r = b.recip(b.sqrt(b.add(b.mul(b.fold("sum", "hidden", b.mul(x, x)), C(1 / H)), C(eps))))
        hx = b.add(b.mul(b.iota("kb"), I(32)), b.iota("ki"))
        return b.mul(b.mul(b.gather(x, {"hidden": hx}), r), b.gather(w, {"hidden": hx}))

    def quant(a, kb, ki):
        hi = b.fold("max", ki, a)
        lo = neg(b.fold("max", ki, neg(a)))
        s = b.mul(b.max(b.add(hi, neg(lo)), C(1e-30)), C(1 / 255))
        c = b.cast(b.add(b.mul(b.add(a, neg(lo)), b.recip(s)), C(-128)), DType.I8)
        xo = b.add(lo, b.mul(C(128), s))
        xs = b.add(b.mul(s, f(b.fold("sum", ki, i(c)))), b.mul(C(32), xo))
        return c, s, xo, xs

    def lin(Q, name, out, kb, ki, bits=bits):
        c, s, xo, xs = Q
        q = b.input(name + ".codes", bits, [*out, kb, ki], Kind.WEIGHT)
        d = b.input(name + ".scales", DType.F16, [*out, kb], Kind.WEIGHT)
        m = b.input(name + ".mins", DType.F16, [*out, kb], Kind.WEIGHT)
        dot = b.fold("sum", ki, b.mul(i(c), i(q)))
        qs = b.fold("sum", ki, i(q))
        return b.fold(
            "sum", kb, b.add(b.add(b.mul(b.mul(s, f(d)), f(dot)), b.mul(xs, f(m))), b.mul(xo, b.mul(f(d), f(qs))))
        )

    Q = quant(norm(x, "norm1"), "kb", "ki")
    q = lin(Q, "q", ["kv_head", "group", "head_dim"], "kb", "ki")
    k = lin(Q, "k", ["kv_head", "head_dim"], "kb", "ki")
    v = lin(Q, "v", ["kv_head", "head_dim"], "kb", "ki")

    def rope(y):
        half = D // 2
        d = b.iota("head_dim")
        other = b.gather(y, {"head_dim": b.mod(b.add(d, I(half)), I(D))})
        return b.add(b.mul(y, cos), b.mul(b.select(b.less(d, I(half)), neg(other), other), sin))

    qr = b.cast(rope(q), BF)
    kr = b.cast(rope(k), BF)
    vr = b.cast(v, BF)
    page = b.gather(table, {"row": row, "p": b.gather(b.iota("position", 16), {"position": pos})})
    slot = b.mod(pos, I(16))
    w1 = Write("keys", ("page", "slot"), (page, slot), kr)
    w2 = Write("values", ("page", "slot"), (page, slot), vr)
    K1 = b.read("keys", 1)
    V1 = b.read("values", 1)
    s_ = b.add(b.mul(b.iota("block"), I(BL)), b.iota("pi"))
    pg = b.gather(table, {"row": row, "p": b.gather(b.iota("position", 16), {"position": s_})})
    sl = b.mod(s_, I(16))
    Kx = b.gather(K1, {"page": pg, "slot": sl})
    Vx = b.gather(V1, {"page": pg, "slot": sl})
    bound = b.add(b.add(pos, I(1)), b.mul(b.iota("block"), I(-BL)))
    sc = b.mul(b.fold("sum", "head_dim", b.mul(f(qr), f(Kx))), C(D**-0.5 * 1.4426950408889634))
    m = b.fold("max", "pi", sc, bound)
    p = b.cast(b.exp2(b.add(sc, neg(m))), BF)
    l = b.fold("sum", "pi", f(p), bound)
    o = b.fold("sum", "pi", b.mul(f(p), f(Vx)), bound)
    nblk = b.add(b.gather(b.iota("position", BL), {"position": pos}), I(1))
    M = b.fold("max", "block", m, nblk)
    w = b.exp2(b.add(m, neg(M)))
    L = b.fold("sum", "block", b.mul(w, l), nblk)
    O = b.fold("sum", "block", b.mul(w, o), nblk)
    out = b.mul(O, b.recip(L))
    n_ = b.add(b.mul(b.iota("kb"), I(32)), b.iota("ki"))
    fl = lambda e, dv: b.gather(b.iota("flat", dv), {"flat": e})
    b.axis("flat", H)
    A = b.gather(out, {"kv_head": fl(n_, E * D), "group": b.mod(fl(n_, D), I(E)), "head_dim": b.mod(n_, I(D))})
    x2 = b.add(x, lin(quant(A, "kb", "ki"), "o", ["hidden"], "kb", "ki"))
    Q2 = quant(norm(x2, "norm2"), "kb", "ki")
    g_ = lin(Q2, "gate", ["ffn"], "kb", "ki")
    u = lin(Q2, "up", ["ffn"], "kb", "ki")
    h = b.mul(b.mul(g_, b.recip(b.add(C(1), b.exp2(b.mul(g_, C(-1.4426950408889634)))))), u)
    hx = b.add(b.mul(b.iota("fb"), I(32)), b.iota("fi"))
    x3 = b.add(x2, lin(quant(b.gather(h, {"ffn": hx}), "fb", "fi"), "down", ["hidden"], "fb", "fi"))
    return b.graph({"x": (x3, ["token", "hidden"])}, [w1, w2])
