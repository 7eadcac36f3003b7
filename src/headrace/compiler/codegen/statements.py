"""Statements in scopes: which loops they are in, what comes before what, which places have names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.compiler.codegen.cone import CannotEmit, Cone
from headrace.compiler.codegen.memory import LANE
from headrace.compiler.codegen.nest import Level, LevelKind, Place, Scope
from headrace.compiler.codegen.placement import Placement
from headrace.compiler.codegen.syntax import around, loop

NAME = re.compile(r"\bspot\d+\b")


@dataclass(slots=True)
class _Lines:
    """Statements and loops of one scope, by time."""

    entries: list[tuple[int, int, list[str]]] = field(default_factory=list)
    loops: dict[tuple[Level, int], Scope] = field(default_factory=dict)


class Statements(Placement):
    """Statements of a nest, each in its loops and at its time, and the text that they make.

    Args:
        cone: The nest.
    """

    def __init__(self, cone: Cone) -> None:
        super().__init__(cone)
        self.scopes: dict[Scope, _Lines] = {(): _Lines()}
        self.names: dict[str, str] = {}  # of places that are read from memory, such as pages, to C expressions
        self.declared: set[tuple[Scope, str]] = set()

    def put(self, place: Place, at: int, lines: list[str], depth: int | None = None, time: int | None = None) -> None:
        """Add lines at a place, or earlier: in one of its outer scopes, at a given time."""
        depth = len(place.path) if depth is None else depth
        lines = [NAME.sub(lambda name: self.declare_name(name[0], place), line) for line in lines]
        self.enter(place, depth, (place.times[depth] if time is None else time, at, lines))

    def enter(self, place: Place, depth: int, entry: tuple[int, int, list[str]]) -> None:
        """Note (time, value, statements) in the scope of so many of a place's loops, and those loops in theirs."""
        for outer in range(depth):
            scope = self.scopes.setdefault(place.scope(outer), _Lines())
            scope.loops[place.path[outer], place.times[outer]] = place.scope(outer + 1)
        self.scopes.setdefault(place.scope(depth), _Lines()).entries.append(entry)

    def named(self, expression: str) -> str:
        """A place that is read from memory gets a variable: the C compiler does not take it out of loops by itself."""
        if "hr_get_" not in expression or re.search(rf"\b{LANE.name}\b", expression):
            return expression
        name = next((name for name, c in self.names.items() if c == expression), f"spot{len(self.names)}")
        self.names[name] = expression
        return name

    def declare_name(self, name: str, place: Place) -> str:
        """Compute a named place in the outermost loop that has all it depends on, for all unrolled turns; its C."""
        used = set(re.findall(r"\w+", self.spelled(name)))
        needed = [n for n, level in enumerate(place.path) if level.variable in used]
        depth = max((n + 1 for n in needed if place.path[n].kind is LevelKind.LOOP), default=0)
        turns = tuple(place.path[n] for n in needed if n >= depth)
        if (place.scope(depth), name) not in self.declared:
            outer = Place((*place.path[:depth], *turns), (*place.times[:depth], *(1 for _ in turns), 0))
            expression = NAME.sub(lambda inner: self.declare_name(inner[0], outer), self.names[name])
            sub = "".join(f"[{level.variable}]" for level in turns)
            sizes = "".join(f"[{level.count}]" for level in turns)
            lines = [f"int64_t {name}{sizes};", *around(turns, [f"{name}{sub} = {expression};"])]
            if not turns:
                lines = [f"const int64_t {name} = {expression};"]
            self.declared.add((place.scope(depth), name))
            self.enter(place, depth, (-2, len(self.declared), lines))
        return name + "".join(f"[{level.variable}]" for level in turns)

    def spelled(self, expression: str) -> str:
        """An expression without names."""
        return NAME.sub(lambda found: self.spelled(self.names[found[0]]), expression)

    def declare(self, at: int, ctype: str) -> str:
        """``type name[count]...`` of an array; a plain variable is declared where it is computed."""
        spans = self.items[at].path[self.nest.kept[at] :]
        if any(not level.count for level in spans):
            raise CannotEmit("an array would span a loop of unknown length")
        return f"{ctype} v{at}" + "".join(f"[{level.count}]" for level in spans)

    def lines(self, scope: Scope) -> list[str]:
        """The text of a scope: its statements and loops by time."""
        held = self.scopes[scope]
        entries = [(time, 0, at, text) for time, at, text in held.entries]
        for (level, time), inner in held.loops.items():
            entries.append(
                (
                    time,
                    1,
                    self.cone.levels.index(level),
                    loop(level, level.steps or str(level.count), self.lines(inner)),
                )
            )
        entries.sort(key=lambda entry: entry[:3])
        return [line for *_, text in entries for line in text]
