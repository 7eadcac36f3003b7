"""Runs captured programs with the interpreter, on PyTorch's tensors."""

from __future__ import annotations

import numpy as np

from headrace.compiler.interpret import interpret, run_program
from headrace.compiler.ir import FLOATS

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
    return {n: np.ascontiguousarray(captured.arrange(starred[n], t)) for n, t in tensors.items() if n in starred}


def widen(program, inputs):
    """Floating point inputs as float64."""
    return {n: np.asarray(a, np.float64) if a.dtype.kind == "f" else a for n, a in inputs.items()}


def run_function(captured, tensors, sizes=None, *, exact=False):
    """A captured function's results in PyTorch's order of dimensions; states among the tensors are changed."""
    (part,) = captured.program.parts
    inputs = arrange(captured, {n: np.array(t) for n, t in tensors.items()} | dict(captured.constants))
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
