"""What cannot be compiled. Apart from capture, which imports PyTorch, so that others can name it."""

from __future__ import annotations

from headrace.errors import HeadraceError


class Unsupported(HeadraceError):
    """A PyTorch operation that capture does not translate, or not in the way that it is used.

    Args:
        op: The operation's ATen name.
        where: Module path and source line.
        why: What about it is not supported; by default, the operation itself.
    """

    def __init__(self, op: str, where: str = "", why: str = "") -> None:
        place = f" at {where}" if where else ""
        reason = why or "the operation is not translated"
        super().__init__(
            f"cannot compile {op}{place}: {reason}; rewrite it with operations that src/headrace/compiler/capture/"
            "README.md lists, or run the model with --executor eager"
        )
        self.op = op
        self.where = where
        self.why = reason
