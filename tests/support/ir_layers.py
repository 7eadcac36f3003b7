"""Graphs written by hand, in the form that rules bring a captured one to."""

from headrace.compiler.ir import Builder, DType, Graph, Kind, Write

F32, BF16, I32 = DType.F32, DType.BF16, DType.I32
LOG2_E = 1.4426950408889634
PAGE = 16


class Writer(Builder):
    """A graph under construction, with what layers are made of."""

    def whole(self, value):
        """An int32."""
        return self.const(value, I32)

    def number(self, value):
        """A float32."""
        return self.const(value, F32)

    def as_f32(self, x):
        return self.cast(x, F32)

    def as_i32(self, x):
        return self.cast(x, I32)

    def minus(self, x):
        return self.mul(self.number(-1), x)

    def joined(self, outer, inner, size):
        """``outer * size + inner``, of two axes."""
        return self.add(self.mul(self.iota(outer), self.whole(size)), self.iota(inner))

    def over(self, axis, index, divisor):
        """``floor(index / divisor)``."""
        return self.gather(self.iota(axis, divisor), {axis: index})

    def norm(self, x, name, extent, index, eps):
        """x over its root mean square, in blocks."""
        mean = self.mul(self.fold("sum", "hidden", self.mul(x, x)), self.number(1 / extent))
        scale = self.recip(self.sqrt(self.add(mean, self.number(eps))))
        weight = self.input(name, F32, ["hidden"], Kind.WEIGHT)
        return self.mul(self.mul(self.gather(x, {"hidden": index}), scale), self.gather(weight, {"hidden": index}))

    def quantized(self, x, inner):
        """x as int8 codes, with their scale, their offset and the sum of what they stand for, block by block."""
        high = self.fold("max", inner, x)
        low = self.minus(self.fold("max", inner, self.minus(x)))
        span = self.max(self.add(high, self.minus(low)), self.number(1e-30))
        scale = self.mul(span, self.number(1 / 255))
        steps = self.mul(self.add(x, self.minus(low)), self.recip(scale))
        codes = self.cast(self.add(steps, self.number(-128)), DType.I8)
        offset = self.add(low, self.mul(self.number(128), scale))
        total = self.mul(scale, self.as_f32(self.fold("sum", inner, self.as_i32(codes))))
        return codes, scale, offset, self.add(total, self.mul(self.number(32), offset))

    def linear(self, activations, name, out, outer, inner, bits):
        """A product with a weight of few bits, each block with its scale and its least value."""
        codes, scale, offset, total = activations
        weight = self.input(f"{name}.codes", bits, [*out, outer, inner], Kind.WEIGHT)
        scales = self.as_f32(self.input(f"{name}.scales", DType.F16, [*out, outer], Kind.WEIGHT))
        least = self.as_f32(self.input(f"{name}.mins", DType.F16, [*out, outer], Kind.WEIGHT))
        dot = self.fold("sum", inner, self.mul(self.as_i32(codes), self.as_i32(weight)))
        sums = self.fold("sum", inner, self.as_i32(weight))
        scaled = self.mul(self.mul(scale, scales), self.as_f32(dot))
        shifted = self.mul(offset, self.mul(scales, self.as_f32(sums)))
        return self.fold("sum", outer, self.add(self.add(scaled, self.mul(total, least)), shifted))

    def rope(self, x, cos, sin, width):
        """x turned by its position's angles."""
        at, half = self.iota("head_dim"), self.whole(width // 2)
        other = self.gather(x, {"head_dim": self.mod(self.add(at, half), self.whole(width))})
        turned = self.select(self.less(at, half), self.minus(other), other)
        return self.add(self.mul(x, cos), self.mul(turned, sin))

    def place(self, table, row, position):
        """Page and slot of a position."""
        page = self.gather(table, {"row": row, "p": self.over("position", position, PAGE)})
        return page, self.mod(position, self.whole(PAGE))

    def attention(self, query, keys, values, positions, place, block, width):
        """Attention of block over block of the positions, then over the blocks."""
        page, slot = place
        at = {"page": page, "slot": slot}
        end = self.add(self.add(positions, self.whole(1)), self.mul(self.iota("block"), self.whole(-block)))
        dots = self.fold("sum", "head_dim", self.mul(self.as_f32(query), self.as_f32(self.gather(keys, at))))
        scores = self.mul(dots, self.number(width**-0.5 * LOG2_E))
        most = self.fold("max", "pi", scores, end)
        weights = self.cast(self.exp2(self.add(scores, self.minus(most))), BF16)
        total = self.fold("sum", "pi", self.as_f32(weights), end)
        sums = self.mul(self.as_f32(weights), self.as_f32(self.gather(values, at)))
        found = self.fold("sum", "pi", sums, end)
        blocks = self.add(self.over("position", positions, block), self.whole(1))
        share = self.exp2(self.add(most, self.minus(self.fold("max", "block", most, blocks))))
        whole = self.fold("sum", "block", self.mul(share, total), blocks)
        return self.mul(self.fold("sum", "block", self.mul(share, found), blocks), self.recip(whole))


def layer(hidden=576, kv_heads=3, group=3, head_dim=64, ffn=1536, block=256, eps=1e-5, bits=DType.U4) -> Graph:
    """A Llama layer with 4-bit weights, 8-bit activations, and attention in bfloat16 over pages of 16 tokens."""
    b = Writer()
    b.axis("token", "T", "row")
    axes = {
        "row": "B", "hidden": hidden, "kv_head": kv_heads, "group": group, "head_dim": head_dim, "ffn": ffn,
        "kb": hidden // 32, "ki": 32, "fb": ffn // 32, "fi": 32, "block": "NB", "pi": block, "page": "PAGES",
        "slot": PAGE, "p": "P", "position": "S", "flat": hidden,
    }  # fmt: skip
    for name, extent in axes.items():
        b.axis(name, extent)
    x = b.input("x", F32, ["token", "hidden"], Kind.VALUE)
    cos = b.input("cos", F32, ["token", "head_dim"], Kind.VALUE)
    sin = b.input("sin", F32, ["token", "head_dim"], Kind.VALUE)
    row, positions = b.input("row", I32, ["token"]), b.input("positions", I32, ["token"])
    table = b.input("pages", I32, ["row", "p"])
    for name in ("keys", "values"):
        b.state(name, BF16, ["page", "slot", "kv_head", "head_dim"])
    index = b.joined("kb", "ki", 32)

    given = b.quantized(b.norm(x, "norm1", hidden, index, eps), "ki")
    query = b.linear(given, "q", ["kv_head", "group", "head_dim"], "kb", "ki", bits)
    key = b.linear(given, "k", ["kv_head", "head_dim"], "kb", "ki", bits)
    value = b.linear(given, "v", ["kv_head", "head_dim"], "kb", "ki", bits)
    turned = b.cast(b.rope(query, cos, sin, head_dim), BF16)
    new_key, new_value = b.cast(b.rope(key, cos, sin, head_dim), BF16), b.cast(value, BF16)
    mine = b.place(table, row, positions)
    writes = [Write("keys", ("page", "slot"), mine, new_key), Write("values", ("page", "slot"), mine, new_value)]
    there = b.place(table, row, b.joined("block", "pi", block))
    found = b.attention(turned, b.read("keys", 1), b.read("values", 1), positions, there, block, head_dim)

    head = b.over("flat", index, group * head_dim)
    within = b.mod(b.over("flat", index, head_dim), b.whole(group))
    flat = b.gather(found, {"kv_head": head, "group": within, "head_dim": b.mod(index, b.whole(head_dim))})
    x = b.add(x, b.linear(b.quantized(flat, "ki"), "o", ["hidden"], "kb", "ki", bits))
    given = b.quantized(b.norm(x, "norm2", hidden, index, eps), "ki")
    gate = b.linear(given, "gate", ["ffn"], "kb", "ki", bits)
    up = b.linear(given, "up", ["ffn"], "kb", "ki", bits)
    sigmoid = b.recip(b.add(b.number(1), b.exp2(b.mul(gate, b.number(-LOG2_E)))))
    inner = b.gather(b.mul(b.mul(gate, sigmoid), up), {"ffn": b.joined("fb", "fi", 32)})
    x = b.add(x, b.linear(b.quantized(inner, "fi"), "down", ["hidden"], "fb", "fi", bits))
    return b.graph({"x": (x, ["token", "hidden"])}, writes)


def plain_layer(hidden=64, ffn=96, dtype=F32) -> Graph:
    """Norm, a gated pair of products and a third, in float32, or with factors in bfloat16."""
    b = Writer()
    for name, extent in {"token": "T", "hidden": hidden, "ffn": ffn, "out": hidden}.items():
        b.axis(name, extent)

    def product(x, name, to, axis):
        weight = b.input(name, dtype, [to, axis], Kind.WEIGHT)
        factors = (b.as_f32(b.cast(x, dtype)), b.as_f32(weight)) if dtype is not F32 else (x, weight)
        return b.fold("sum", axis, b.mul(*factors))

    x = b.input("x", F32, ["token", "hidden"], Kind.VALUE)
    given = b.norm(x, "norm", hidden, b.iota("hidden"), 1e-5)
    gate, up = product(given, "gate", "ffn", "hidden"), product(given, "up", "ffn", "hidden")
    sigmoid = b.recip(b.add(b.number(1), b.exp2(b.mul(gate, b.number(-LOG2_E)))))
    down = product(b.mul(b.mul(gate, sigmoid), up), "down", "out", "ffn")
    return b.graph({"y": (b.add(b.gather(x, {"hidden": b.iota("out")}), down), ["token", "out"])})
