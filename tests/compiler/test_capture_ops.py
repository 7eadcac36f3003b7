"""Operations one by one: captured, interpreted, against PyTorch eager in float32 and in float64."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from captured import arguments_of, check, run_function
from hypothesis import HealthCheck, Phase, given, settings
from torch.nn import functional

from headrace.compiler.capture import Unsupported, capture_function
from headrace.compiler.capture.arguments import Argument
from headrace.compiler.ir import Axis, Op

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch.export itself
few = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
SPECIAL = [0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.0, -2.0, float("inf"), float("-inf"), float("nan"), 1e-3]

ELEMENTWISE = {
    "exp": lambda x, y: x.exp(),
    "exp2": lambda x, y: torch.exp2(x),
    "log": lambda x, y: x.log(),
    "log2": lambda x, y: x.log2(),
    "log10": lambda x, y: x.log10(),
    "sqrt": lambda x, y: x.sqrt(),
    "rsqrt": lambda x, y: x.rsqrt(),
    "reciprocal": lambda x, y: x.reciprocal(),
    "sin": lambda x, y: x.sin(),
    "cos": lambda x, y: (300 * x).cos(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "silu": lambda x, y: functional.silu(x),
    "gelu": lambda x, y: functional.gelu(x, approximate="tanh"),
    "relu": lambda x, y: x.relu(),
    "leaky": lambda x, y: functional.leaky_relu(x, 0.1),
    "hardswish": lambda x, y: functional.hardswish(x),
    "abs": lambda x, y: x.abs(),
    "sign": lambda x, y: x.sign(),
    "floor": lambda x, y: x.floor(),
    "ceil": lambda x, y: x.ceil(),
    "round": lambda x, y: x.round(),
    "trunc": lambda x, y: x.trunc(),
    "neg": lambda x, y: -x,
    "add": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub": lambda x, y: 2 - x,
    "mul": lambda x, y: x * y * 2,
    "div": lambda x, y: x / y,
    "scalar_div": lambda x, y: 3 / x,
    "pow": lambda x, y: x**3 + x**-2 + x**2,
    "root": lambda x, y: (x * x) ** 0.5 + (x * x + 1) ** 1.7,
    "scalar_pow": lambda x, y: 2.5**x,
    "minimum": lambda x, y: torch.minimum(x, y),
    "maximum": lambda x, y: torch.maximum(x, y),
    "clamp": lambda x, y: x.clamp(-0.7, 1.1),
    "clamp_min": lambda x, y: x.clamp(min=0.1),
    "clamp_tensor": lambda x, y: x.clamp(max=y),
    "where": lambda x, y: torch.where(x < y, x, y * 2),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, float("-inf")),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > 0.5,
    "ge": lambda x, y: x >= 0.5,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != x.floor(),
    "and": lambda x, y: (x > 0) & ~(y > 0),
    "or": lambda x, y: (x > 0) | (y > 0) ^ (x > y),
    "isnan": lambda x, y: x.isnan(),
    "int": lambda x, y: (x * 10).clamp(-99, 99).nan_to_num(5.0).int(),
    "bool": lambda x, y: x.bool(),
    "count": lambda x, y: (x > y).float() + (x > y).long(),
}


@pytest.mark.parametrize("group", range(4))
@few
@given(data=st.data())
def test_elementwise(group, data):
    functions = list(ELEMENTWISE.values())[group::4]
    rank = data.draw(st.integers(0, 3))
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=rank, max_size=rank))
    other = [1 if data.draw(st.booleans()) else n for n in shape][data.draw(st.integers(0, rank)) :]
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x, y = torch.randn(shape), torch.randn(other)
    check(lambda x, y: [f(x, y) for f in functions], {"x": x, "y": y}, shared=data.draw(st.booleans()))


@pytest.mark.parametrize("group", range(2))
def test_elementwise_of_special_values(group):
    left_out = ("int", "cos")  # an infinite integer has no meaning
    functions = [f for n, f in ELEMENTWISE.items() if n not in left_out][group::2]
    x = torch.tensor(SPECIAL)
    check(lambda x, y: [f(x, y[:, None]) for f in functions], {"x": x, "y": x})


def test_cosines_of_large_angles():
    """As rope needs them at far positions: x + pi / 2 in float32 would be off by 1e-3."""
    x = torch.linspace(0, 30000, 997)
    check(lambda x: x.cos(), {"x": x}, tolerance=1e-6)


INTEGERS = {
    "add": lambda x, y: x + y * 3 - 2,
    "remainder": lambda x, y: x % 7,
    "floor": lambda x, y: x // 5,
    "floor_tensor": lambda x, y: x // (y % 5 + 1),
    "remainder_tensor": lambda x, y: x % (y % 5 + 1),
    "abs": lambda x, y: x.abs(),
    "less": lambda x, y: x < y,
    "same": lambda x, y: (x % 4) == (y % 4),
    "minimum": lambda x, y: torch.minimum(x, y),
    "clamp": lambda x, y: x.clamp(-5, 9),
    "square": lambda x, y: (x % 100) ** 3,
    "sum": lambda x, y: x.sum(-1),
    "max": lambda x, y: x.amax(-1),
    "where": lambda x, y: torch.where(x > 0, x, -1),
}


@pytest.mark.parametrize("bound", [100, 2**29])
def test_integers(bound):
    torch.manual_seed(0)
    x = torch.randint(-bound, bound, (3, 5), dtype=torch.int32)
    y = torch.randint(-bound, bound, (3, 5), dtype=torch.int32)
    check(lambda x, y: [f(x, y) for f in INTEGERS.values()], {"x": x, "y": y}, shared=True)


def test_integers_to_floats():
    x = torch.tensor([0, 1, -7, 2**24 + 1, -(2**31)], dtype=torch.int32)
    check(lambda x: (x / 8, x.float() / 4, x.double() / 3, x.float().mean()), {"x": x}, tolerance=1e-7, exact=False)


def test_division_by_every_constant():
    """Through float64, rounded to nearest: exact for all of int32."""
    edges = [0, 1, -1, 2**31 - 1, -(2**31), 2**31 - 2]
    x = torch.tensor([*edges, *range(-60, 60)], dtype=torch.int32)
    check(lambda x: [x // d for d in (1, 2, 3, 7, 10, 49, 641, 2**31 - 1)], {"x": x})


REDUCTIONS = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "prod": lambda x, d, k: x.prod(d, keepdim=k),
    "any": lambda x, d, k: (x > 0.5).any(d, keepdim=k),
    "all": lambda x, d, k: (x > -0.5).all(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k, correction=0),
    "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "norm": lambda x, d, k: x.norm(dim=d, keepdim=k),
    "cumsum": lambda x, d, k: x.cumsum(d),
    "cumprod": lambda x, d, k: x.cumprod(d),
    "softmax": lambda x, d, k: x.softmax(d),
    "log_softmax": lambda x, d, k: x.log_softmax(d),
    "total": lambda x, d, k: (x.sum(), x.mean(), x.max(), x.prod()),
    "spread": lambda x, d, k: x.unsqueeze(d).expand(*x.shape[:d], 4, *x.shape[d:]).sum(d),
    "spread_max": lambda x, d, k: x.unsqueeze(d).expand(*x.shape[:d], 4, *x.shape[d:]).amax(d),
    "layer_norm": lambda x, d, k: functional.layer_norm(x, x.shape[-1:], x.flatten()[-x.shape[-1] :]),
    "group_norm": lambda x, d, k: functional.group_norm(x.flatten().expand(2, 4, -1), 2, x.new_ones(4)),
    "rms_norm": lambda x, d, k: functional.rms_norm(x, x.shape[-1:], eps=1e-5),
}


def results(functions, *args):
    found = [f(*args) for f in functions]
    return [y for x in found for y in (x if isinstance(x, tuple | list) else [x])]


@few
@given(data=st.data())
def test_reductions(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    keep = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 99)))
    symbols = data.draw(st.sampled_from([(), (5,)]))
    functions = [
        f
        for n, f in REDUCTIONS.items()
        if not (symbols and n in ("layer_norm", "group_norm", "rms_norm", "var", "total"))
    ]
    check(lambda x: results(functions, x, dim, keep), {"x": torch.randn(shape)}, symbols=symbols)


VIEWS = {
    "merge": lambda x: x.reshape(6, 20),
    "merge_all": lambda x: x.flatten(),
    "split": lambda x: x.unflatten(2, (2, 2)).unflatten(-1, (-1, 5)),
    "regroup": lambda x: x.reshape(3, 4, 10),
    "regroup_odd": lambda x: x.reshape(8, 15),
    "back": lambda x: x.reshape(6, 20).reshape(2, 3, 4, 5),
    "ones": lambda x: x.reshape(1, 6, 1, 20, 1).squeeze(),
    "permute": lambda x: x.permute(3, 0, 2, 1).reshape(5, 24),
    "transpose": lambda x: x.transpose(1, 3).flatten(1, 2),
    "slice": lambda x: x[:, 1:, ::2, -3:-1],
    "select": lambda x: x[1, :, -1],
    "chunk": lambda x: [*x.chunk(2, 2), *x.split([1, 4], -1), *x.split(2, 1), *x.unbind(0)],
    "cat": lambda x: torch.cat([x, x[:, :1] * 2, x[:, 1:]], 1),
    "halves": lambda x: torch.cat((-x[..., 2:], x[..., :2]), -1),
    "stack": lambda x: torch.stack([x, x + 1], 2),
    "flip": lambda x: x.flip(1, -1),
    "roll": lambda x: x.roll((1, -2), (0, 3)),
    "expand": lambda x: x[:, :1].expand(2, 7, 4, 5) * 2,
    "repeat": lambda x: x.repeat(2, 1, 3, 1, 2),
    "repeat_interleave": lambda x: x[:, :, None].expand(2, 3, 3, 4, 5).reshape(2, 9, 4, 5),
    "repeat_interleave_op": lambda x: x.repeat_interleave(3, 1),
    "pad": lambda x: functional.pad(x, (1, 2, 0, 3), value=7.0),
    "crop": lambda x: functional.pad(x, (-1, 2, -1, 0)),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "triangle": lambda x: x.tril(1) + x.triu(-1),
    "transposed_sum": lambda x: x[0, 0, :4, :4] + x[0, 0, :4, :4].T,
    "outer": lambda x: x[0, 0, 0, :, None] - x[0, 0, 0, None, :],
    "unsqueeze": lambda x: x.unsqueeze(2).squeeze(2)[None],
    "constants": lambda x: x.new_zeros(2, 3) + torch.ones(3) + torch.full((2, 1), 4.0),
    "like": lambda x: torch.zeros_like(x) + torch.full_like(x, 2),
    "movedim": lambda x: x.movedim(0, 2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="ij"),
    "pixel": lambda x: functional.pixel_shuffle(x.permute(0, 2, 3, 1), 2),
}  # fmt: skip


@pytest.mark.parametrize("group", range(3))
def test_views(group):
    functions = list(VIEWS.values())[group::3]
    check(lambda x: results(functions, x), {"x": torch.randn(2, 3, 4, 5)})


def test_arange():
    def counted(x):
        n = x.shape[0]
        return torch.arange(n), torch.arange(2, 9, 3) + 0 * n, torch.arange(n)[:, None] == torch.arange(n), x[-1] * n

    check(counted, {"x": torch.randn(6)}, symbols=(6,))


INDEXING = {
    "rows": lambda x, i, j: x[i],
    "pairs": lambda x, i, j: x[i, j],
    "outer": lambda x, i, j: x[i[:, None], j[None, :]],
    "apart": lambda x, i, j: x[i[:, None], :, j[None, :] % 4],
    "last": lambda x, i, j: x[:, :, i],
    "none": lambda x, i, j: x[:, None, j],
    "index_select": lambda x, i, j: x.index_select(1, j.abs()),
    "embedding": lambda x, i, j: functional.embedding(i.abs()[None], x[0]),
    "gather": lambda x, i, j: x[0].gather(1, torch.stack([i, j])[:, :4] % 4),
    "gather_first": lambda x, i, j: x[:, :, 0].gather(0, torch.stack([i, j]).abs() % 3),
    "take_along": lambda x, i, j: torch.take_along_dim(x[0], (i[:, None] % 4), 1),
    "put_rows": lambda x, i, j: x.index_put((i[1:4] % 3,), x[0] * 2),
    "put_number": lambda x, i, j: x.index_put((i[:2] % 3, j[:2]), x[0, 0, 0]),
    "select_scatter": lambda x, i, j: x.select_scatter(x[0] + 1, 0, -1),
    "slice_scatter": lambda x, i, j: x.slice_scatter(x[:, :2] + 1, 1, -3, -1),
}


@pytest.mark.parametrize("symbols", [(), (5,)])
@pytest.mark.parametrize("least", [None, 0])
def test_indexing(symbols, least):
    low = -3 if least is None else 0
    torch.manual_seed(1)
    x = torch.randn(3, 5, 4)
    i, j = torch.tensor([2, low, 1, 0, 1]), torch.tensor([4, 0, low, 3, 1])
    left_out = ("put_rows", "put_number", "gather", "gather_first", "take_along", "slice_scatter") if symbols else ()
    functions = [f for n, f in INDEXING.items() if n not in left_out]
    check(lambda x, i, j: results(functions, x, i, j), {"x": x, "i": i, "j": j}, symbols=symbols, least=least)


CONTRACTIONS = {
    "linear": lambda x, w, b: functional.linear(x, w, b),
    "mm": lambda x, w, b: x[0] @ w.T,
    "matmul": lambda x, w, b: x @ w.T,
    "mv": lambda x, w, b: x @ w[0],
    "vm": lambda x, w, b: w[0] @ w.T,
    "dot": lambda x, w, b: b.dot(b),
    "batched": lambda x, w, b: x @ x.transpose(-1, -2),
    "broadcast": lambda x, w, b: x[:, None] @ x[None].transpose(-1, -2),
    "bmm": lambda x, w, b: torch.bmm(x, x.transpose(1, 2)),
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w.T),
    "einsum": lambda x, w, b: torch.einsum("bte,oe->bot", x, w),
    "einsum_three": lambda x, w, b: torch.einsum("bte,oe,o->bt", x, w, b),
    "einsum_diagonal": lambda x, w, b: torch.einsum("ij,ij->i", w, w),
    "outer": lambda x, w, b: torch.outer(b, b),
    "self": lambda x, w, b: w[:, :3] @ w[:3],
    "attention": lambda x, w, b: functional.scaled_dot_product_attention(x, x * 2, x + 1),
    "causal": lambda x, w, b: functional.scaled_dot_product_attention(x, x[:, :3], x[:, :3], is_causal=True),
    "masked": lambda x, w, b: functional.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT > 0, scale=0.3),
    "biased": lambda x, w, b: functional.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT),
    "grouped": lambda x, w, b: functional.scaled_dot_product_attention(
        x.repeat(3, 1, 1)[None], x[None], x[None], enable_gqa=True, attn_mask=(x @ x.mT > -1).any(0)
    ),
    "unseen": lambda x, w, b: functional.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT > 1e9),
}  # fmt: skip


@pytest.mark.parametrize("group", range(2))
@pytest.mark.parametrize("shared", [True, False])
def test_contractions(group, shared):
    torch.manual_seed(0)
    functions = list(CONTRACTIONS.values())[group::2]
    tensors = {"x": torch.randn(2, 4, 6), "w": torch.randn(5, 6), "b": torch.randn(5)}
    check(lambda x, w, b: results(functions, x, w, b), tensors, shared=shared)


def test_state_is_written_before_it_is_read():
    def store(state, at, value):
        before = state.sum()
        state.index_put_((at, torch.arange(2)[:, None]), value)
        middle = state[at] * 1
        state.index_put_((at,), value.sum(0)[:, None] * 2)
        return before, middle, state.sum(1)

    tensors = {"state": torch.randn(5, 2), "at": torch.tensor([4, 0, 2]), "value": torch.randn(2, 3)}
    captured = check(store, tensors, states=("state",), least=0)
    graph = captured.program.parts[0].graph
    assert [w.state for w in graph.writes] == ["state", "state"]
    assert {i.version for i in graph.inputs.values() if i.state} == {0, 1, 2}


def test_projection_split_into_heads_is_one_gather():
    graph = check(
        lambda x, w: functional.linear(x, w).unflatten(-1, (3, 4)).transpose(0, 1),
        {"x": torch.randn(5, 6), "w": torch.randn(12, 6)},
        shared=True,
    ).program.parts[0].graph  # fmt: skip
    ops = [n.op for n in graph.nodes]
    assert ops.count(Op.GATHER) == 1
    assert ops.count(Op.FOLD) == 1


def test_split_and_merge_cancel():
    def round_trip(x):
        return x.unflatten(1, (2, 3, 4)).flatten(2, 3).flatten(1, 2)

    graph = check(round_trip, {"x": torch.randn(5, 24)}).program.parts[0].graph
    assert [n.op for n in graph.nodes if n.op is not Op.INPUT] == [Op.IOTA, Op.GATHER]  # a rename is all that is left


UNSUPPORTED = {
    "sort": lambda x: x.sort().values,
    "erf": lambda x: functional.gelu(x),
    "nonzero": lambda x: x.nonzero(),
    "mask_index": lambda x: x[x > 0],
    "bits": lambda x: x.int() & 3,
    "tensor_power": lambda x: x**x,
    "accumulate": lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "half": lambda x: x.half() + 1,
    "complex": lambda x: torch.complex(x, x).abs(),
    "argmax": lambda x: x.argmax(0),
    "random": lambda x: torch.rand_like(x),
    "divide_long": lambda x: x.long() // 3,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_names_operation_and_line(name):
    arguments = [Argument("x", torch.float32, (Axis("n", 4), Axis("m", 3)))]
    with pytest.raises(Unsupported) as caught:
        capture_function(UNSUPPORTED[name], arguments)
    assert "test_capture_ops.py" in str(caught.value)
    assert caught.value.op in str(caught.value)


def test_a_changed_copy_of_a_state_is_refused():
    """It looks like a write in the exported program, and is none."""
    state, at = torch.randn(5, 2), torch.tensor([1])
    with pytest.raises(Unsupported, match="a changed copy"):
        check(lambda s, at: s.index_put((at,), s[:1] * 2), {"s": state, "at": at}, states=("s",), least=0)


def test_an_argument_that_is_changed_is_refused():
    with pytest.raises(Unsupported, match="changed otherwise"):
        check(lambda x: x.mul_(2), {"x": torch.randn(3)})


def test_constants_in_the_code_and_buffers():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor([2.0, 3.0, 5.0]))

        def forward(self, x):
            return x * self.scale + torch.tensor([1.0, 10.0, 100.0])

    module, x = Scaled(), torch.randn(4, 3)
    captured = capture_function(module, arguments_of({"x": x}))
    assert captured.constants["scale"].tolist() == [2, 3, 5]
    np.testing.assert_allclose(run_function(captured, {"x": x})["result"], module(x), rtol=1e-6)


def test_symbols_may_have_any_length():
    """Exported with two sizes, right at all others, one included."""

    def mixed(x, y):
        joined = x[:, None, :] + y[None, :, :]
        return joined.softmax(1).sum(0) * x.shape[0], joined.mean(0), torch.arange(y.shape[0]) * 2, x @ y.T

    x, y = torch.randn(5, 4), torch.randn(6, 4)
    captured = capture_function(mixed, arguments_of({"x": x, "y": y}, symbols=(5, 6)), [f"o{i}" for i in range(4)])
    for n, m in ((1, 1), (1, 3), (9, 1), (2, 8)):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        got = run_function(captured, {"x": x, "y": y}, {"S5": n, "S6": m})
        for wanted, name in zip(mixed(x, y), got, strict=True):
            np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5)


def test_sizes_that_decide_are_refused():
    with pytest.raises(Unsupported, match="S5"):
        check(lambda x: x * 2 if x.shape[0] > 3 else x, {"x": torch.randn(5)}, symbols=(5,))
