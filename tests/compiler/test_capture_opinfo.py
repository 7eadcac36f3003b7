"""PyTorch's own samples of its operations: each is translated rightly or refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from captured import run_function
from torch.utils._pytree import tree_flatten, tree_unflatten

from headrace.compiler.capture import Argument, Unsupported, capture_function
from headrace.compiler.capture.values import DTYPES
from headrace.compiler.ir import Axis

pytest.importorskip("expecttest", reason="PyTorch's sample inputs need it")
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch.export itself
FLOAT = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
# What draws random numbers, or returns memory that was never written.
UNREPEATABLE = (
    "rand", "dropout", "bernoulli", "multinomial", "normal", "exponential", "cauchy", "geometric", "uniform", "empty",
    "rrelu", "jiterator",
)  # fmt: skip


def sample_of(op, at):
    samples = iter(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    return next((s for n, s in enumerate(samples) if n == at), None)


def outcome(op, at=0):
    """``translated``, ``refused`` or ``no sample``; raises on a wrong answer."""
    torch.manual_seed(0)
    sample = sample_of(op, at)
    if sample is None or any(word in op.name for word in UNREPEATABLE):
        return "no sample"
    leaves, shape = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = {f"x{n}": t.detach() for n, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
    if not tensors or any(t.dtype not in DTYPES or t.is_sparse for t in tensors.values()):
        return "no sample"

    def function(*given):
        tensor = iter(given)
        first, args, options = tree_unflatten(
            [next(tensor) if isinstance(x, torch.Tensor) else x for x in leaves], shape
        )
        return tree_flatten(op.op(first, *args, **options))[0]

    wanted = function(*(t.clone() for t in tensors.values()))
    if not all(isinstance(x, torch.Tensor) and x.dtype is not torch.bfloat16 for x in wanted):
        return "no sample"
    arguments = [
        Argument(name, t.dtype, tuple(Axis(f"{name}_{d}", n) for d, n in enumerate(t.shape)))
        for name, t in tensors.items()
    ]
    names = [f"out{n}" for n in range(len(wanted))]
    try:
        captured = capture_function(function, arguments, names)
    except Unsupported:
        return "refused"
    got = run_function(captured, {n: t.numpy() for n, t in tensors.items()})
    for name, tensor in zip(names, wanted, strict=True):
        bar = 1e-4 if tensor.is_floating_point() else 0
        np.testing.assert_allclose(got[name], tensor.numpy(), rtol=bar, atol=bar, equal_nan=True, err_msg=op.name)
    return "translated"


def count(operations, samples):
    wrong, counts = {}, Counter()
    for op in operations:
        for at in range(samples):
            try:
                counts[outcome(op, at)] += 1
            except Exception as error:
                wrong[op.formatted_name, at] = f"{type(error).__name__}: {str(error)[:300]}"
    print(dict(counts))
    return wrong, counts


def test_some_operations():
    wrong, counts = count(FLOAT[7::60], 1)
    assert not wrong
    assert counts["translated"] >= 4


@pytest.mark.bars
def test_every_operation():
    wrong, counts = count(FLOAT, 2)
    assert not wrong
    assert counts["translated"] > counts["refused"]
