"""Which values of a nest get a variable, and in which loops they are computed."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.compiler.codegen.cone import CannotEmit, Cone
from headrace.compiler.codegen.memory import Memory
from headrace.compiler.codegen.nest import Item, LevelKind, Nest, Path, arrange, path_of
from headrace.compiler.codegen.syntax import literal
from headrace.compiler.ir import FLOATS, SCAN, DType, Node, Op


class Placement(Memory):
    """A nest's values, placed.

    Args:
        cone: The nest.
    """

    def __init__(self, cone: Cone) -> None:
        super().__init__(cone)
        self.fused: set[int] = set()
        self.items: dict[int, Item] = {}
        self.nest = Nest()

    def value(self, at: int, as_vector: bool = False) -> str:
        """The C expression for a value, a single one spread over the lanes if ``as_vector``."""
        c = self._value(at)
        return self.splat(c, self.rep(at)) if as_vector and not self.vector(at) else c

    def _value(self, at: int) -> str:
        node = self.node(at)
        if at in self.items:
            return self.variable(at)
        if node.op is Op.CONST:
            return literal(node)
        index = self.index(at)
        if index is not None:
            if index.dot:
                raise CannotEmit("an index of the members of a group")
            if not self.vector(at) or index.uniform:
                return f"({index.c()})" if not self.vector(at) else self.splat(index.c(), "i")
            return f"hr_iota({index.c()}, {index.lane})"
        if self.dtype(at) is DType.BOOL and not self.vector(at) and (condition := self.condition(at)) is not None:
            return f"({condition})"
        if self.unread(at):
            return self._value(node.args[0])
        if self.in_memory(at):
            return self.load(at)
        raise CannotEmit(f"{node.op} is not placed")

    def variable(self, at: int) -> str:
        """A placed value's variable, indexed by the loops that its array spans."""
        spans = self.items[at].path[self.nest.kept[at] :]
        return f"v{at}" + "".join(f"[{level.variable}]" for level in spans)

    def inline(self, at: int) -> bool:
        """Whether a value needs no variable: a number, an index, one element read from memory."""
        if self.node(at).op is Op.CONST or self.index(at) is not None:
            return True
        if self.unread(at):
            return True
        if self.dtype(at) is DType.BOOL and not self.vector(at):
            return self.condition(at) is not None
        return self.in_memory(at) and not self.vector(at)

    def behind(self, at: int) -> int:
        """The value itself, behind casts that change nothing."""
        while at not in self.items and self.unread(at):
            at = self.node(at).args[0]
        return at

    def plan(self) -> None:
        """Find the values to place and place them."""
        for at in self.uses:
            node = self.node(at)
            if node.op is Op.FOLD and at not in self.cone.buffers:
                self.fused |= set(self._addends(node)[1])
        order = sorted(at for at in self.uses if at not in self.fused and not self.inline(at))
        for at in order:
            self._check(at)
        placed = set(order)
        for at in order:
            node = self.node(at)
            path = inside = path_of(self.cone.levels, self.axes[at])
            if node.op is Op.FOLD and at not in self.cone.buffers:
                axis = str(node.attrs[1])
                inside = path_of(self.cone.levels, self.axes[at] | self.axes[node.args[0]] | {axis})
            needs = tuple(sorted({n for n in map(self.behind, self._reads(at)) if n in placed}))
            self.items[at] = Item(path, inside, needs)
        for at, store in enumerate(self.cone.stores, len(self.graph.nodes)):
            wanted = self.axes[store.node].union(*(self.axes[x] for x in store.indices.values()))
            path = path_of(self.cone.levels, wanted)
            needs = (self.behind(store.node),) if self.behind(store.node) in placed else ()
            self.items[at] = Item(path, path, needs)
        self._keep_loads_near()
        self.nest = arrange(self.items)

    def _keep_loads_near(self) -> None:
        """Read memory where the value is used, rather than copy a row out of a loop that it does not change in."""
        readers: dict[int, set[Path]] = {}
        for item in self.items.values():
            for need in item.needs:
                readers.setdefault(need, set()).add(item.inside)
        for at, item in self.items.items():
            looped = [self.cone.levels.index(x) for x in item.path if x.kind is LevelKind.LOOP]
            if at < len(self.graph.nodes) and self.in_memory(at) and looped and len(readers.get(at, ())) == 1:
                (inside,) = readers[at]
                near = tuple(x for x in inside if x in item.path or self.cone.levels.index(x) < looped[-1])
                self.items[at] = Item(near, near, item.needs)

    def _check(self, at: int) -> None:
        node = self.node(at)
        if self.dtype(at) in (DType.F64, DType.I64):
            raise CannotEmit(f"there is no code for {self.dtype(at)}")
        if node.op is Op.GATHER and not (self.in_memory(at) or self.is_iota(at)):
            raise CannotEmit("a gather reads memory; its source is still to be computed")
        if node.op in (Op.SCATTER,) or (node.op is Op.FOLD and node.attrs[2] == SCAN):
            raise CannotEmit(f"there is no code for {node.op} here")

    def _reads(self, at: int) -> Iterator[int]:
        """The values that a value's code names."""
        node = self.node(at)
        if self.in_memory(at) or self.is_iota(at):
            yield from node.args[1:] if node.op is Op.GATHER and at not in self.cone.buffers else ()
            return
        if node.op is Op.FOLD:
            for addend in self._addends(node)[0]:
                yield from addend
            if len(node.args) > 1:
                yield node.args[1]
            return
        yield from node.args

    def _addends(self, fold: Node) -> tuple[list[tuple[int, ...]], list[int]]:
        """What a fold adds up: sums taken apart, products as pairs; and the nodes that vanish by it."""
        return self._apart(fold.args[0]) if fold.attrs[0] == "sum" else ([(fold.args[0],)], [])

    def _apart(self, at: int) -> tuple[list[tuple[int, ...]], list[int]]:
        node = self.node(at)
        rounded = self.dtype(at) in (DType.BF16, DType.F16)
        if self.uses[at] > 1 or self.in_memory(at) or self.inline(at) or rounded:
            return [(at,)], []
        if node.op is Op.ADD and self.dtype(at) in FLOATS:
            parts = [self._apart(x) for x in node.args]
            return [a for added, _ in parts for a in added], [at, *(v for _, vanished in parts for v in vanished)]
        if node.op is Op.MUL:
            return [node.args], [at]
        return [(at,)], []
