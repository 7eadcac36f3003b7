"""Runs captured programs with the interpreter, on PyTorch's tensors."""

from __future__ import annotations

import numpy as np

from headrace.compiler.capture import Argument, capture_function
from headrace.compiler.interpret import interpret, run_program
from headrace.compiler.ir import FLOATS, Axis

PAGE = 16


def weights_of(captured, module, prefix=""):
    """Weights and constants of a module as a program's inputs."""
    found = {prefix + name: tensor.detach().numpy() for name, tensor in module.named_parameters(remove_duplicate=False)}
    return arrange(captured, found | dict(captured.constants))


def arrange(captured, tensors):
    """Tensors by full name as inputs; what the program does not take is left out."""
    starred = {}
    for part in captured.program.parts:
        for name in (*part.graph.inputs, *part.graph.states):
            starred |= {name.replace("*", repeat): name for repeat in part.repeats}
    return {n: np.array(captured.arrange(starred[n], t), order="C") for n, t in tensors.items() if n in starred}


def widen(program, inputs):
    """Floating point inputs as float64."""
    return {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in inputs.items()}


def run_function(captured, tensors, sizes=None, *, exact=False):
    """A captured function's results in PyTorch's order of dimensions; states among the tensors are changed."""
    (part,) = captured.program.parts
    inputs = arrange(captured, {n: np.asarray(t) for n, t in tensors.items()} | dict(captured.constants))
    inputs = {n: np.array(a) for n, a in inputs.items()}
    if exact:
        inputs = widen(captured.program, inputs)
    outputs = interpret(part.graph, inputs, sizes or {}, exact=exact)
    states = {n: captured.restore(n, inputs[n]) for n in part.graph.states}
    return {n: captured.restore(n, a) for n, a in outputs.items()} | states


class PagedRun:
    """A captured decoder with pages of its own, for batches of several sequences."""

    def __init__(self, captured, model, *, pages=24, exact=False):
        self.captured, self.exact = captured, exact
        self.inputs = weights_of(captured, model)
        self.pages = pages
        rng = np.random.default_rng(0)
        for part in captured.program.parts:
            for name, kind in part.graph.states.items():
                shape = [pages if a == "page" else part.graph.axes[a].extent for a in kind.axes]
                for repeat in part.repeats:
                    # Nothing may come of what was in a page before.
                    self.inputs[name.replace("*", repeat)] = rng.normal(0, 9, shape).astype(np.float32)
        if exact:
            self.inputs = widen(captured.program, self.inputs)

    def step(self, rows, select):
        """Logits [selected, vocab] of one step.

        Args:
            rows: For each sequence its new tokens, its first position and its pages.
            select: Tokens of the step, counted over all rows.
        """
        lengths = [len(tokens) for tokens, _, _ in rows]
        most = max(len(pages) for _, _, pages in rows)
        int32 = {
            "tokens": np.concatenate([tokens for tokens, _, _ in rows]),
            "positions": np.concatenate([np.arange(start, start + len(t)) for t, start, _ in rows]),
            "row": np.repeat(np.arange(len(rows)), lengths),
            "page_rows": np.array([[*pages, *[0] * (most - len(pages))] for _, _, pages in rows]),
            "select": np.array(select),
        }
        given = arrange(self.captured, {n: np.asarray(a, np.int32) for n, a in int32.items()})
        sizes = {"T": sum(lengths), "B": len(rows), "P": most, "S": most * PAGE, "R": len(select), "N": self.pages}
        out = run_program(self.captured.program, self.inputs | given, sizes, exact=self.exact)
        return self.captured.restore("logits", out["logits"])


def all_types(program):
    """Element types that a program computes with."""
    return {t.dtype for part in program.parts for t in part.graph.types if t.dtype in FLOATS}


def arguments_of(tensors, *, symbols=(), shared=False, states=(), least=None):
    """Arguments for example tensors.

    Args:
        tensors: By name.
        symbols: Sizes that become symbols.
        shared: Let dimensions of one size have one axis, as far as that is possible.
        states: Names of those that are states.
        least: Promise for integers.
    """
    made = []
    for name, tensor in tensors.items():
        axes, used = [], set()
        for at, size in enumerate(tensor.shape):
            axis = f"n{size}" if shared and size not in used else f"{name}{at}"
            used.add(size)
            axes.append(Axis(axis, f"S{size}" if size in symbols else size))
        promise = least if not tensor.dtype.is_floating_point else None
        made.append(Argument(name, tensor.dtype, tuple(axes), name in states, promise))
    return made


def check(function, tensors, *, symbols=(), shared=False, states=(), least=None, tolerance=1e-5, exact=True):
    """Capture a function and compare with PyTorch: in float32, and exactly in float64.

    Returns:
        The captured program.
    """
    arguments = arguments_of(tensors, symbols=symbols, shared=shared, states=states, least=least)
    count = len(flat(function(*(t.clone() for t in tensors.values()))))
    names = [f"out{i}" for i in range(count)]
    captured = capture_function(function, arguments, names)
    sizes = {f"S{size}": size for size in symbols}
    for wide, bar in [(False, tolerance), *([(True, 1e-9)] if exact else [])]:
        given = {n: t.double() if wide and t.is_floating_point() else t.clone() for n, t in tensors.items()}
        got = run_function(captured, {n: t.numpy() for n, t in given.items()}, sizes, exact=wide)
        wanted = dict(zip(names, flat(function(*given.values())), strict=True)) | {n: given[n] for n in states}
        for name, tensor in wanted.items():
            assert_close(got[name], tensor.numpy(), bar, f"{name}, exact={wide}")
    return captured


def flat(results):
    return list(results) if isinstance(results, tuple | list) else [results]


def assert_close(got, wanted, bar, what):
    assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(got, wanted, what)
    else:
        np.testing.assert_allclose(got, wanted, rtol=bar, atol=bar, equal_nan=True, err_msg=what)
