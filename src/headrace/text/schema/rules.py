"""Rules of a grammar, before they are written down: what can never be finished is taken out first.

A rule whose every alternative needs what has no text would lead a model into a place with no way on. So a grammar is
built without care for that, and then pruned, as one does with context-free grammars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Terminal:
    """A token of the lexer: a Lark expression of literals and regular expressions that some text matches."""

    body: str


@dataclass(frozen=True, slots=True)
class Call:
    """Another rule."""

    rule: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any of them; none: no text at all."""

    options: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Many:
    """So many times."""

    part: Part
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A part written as Lark, which has a text; and the rules that it names."""

    text: str
    calls: tuple[str, ...]


Part = Terminal | Call | Row | Choice | Many | Verbatim

NEVER = Choice(())
NOTHING = Row(())


def row(*parts: Part) -> Part:
    """One after the other."""
    return parts[0] if len(parts) == 1 else Row(parts)


def choice(options: list[Part]) -> Part:
    """Any of them, each once."""
    distinct = tuple(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


@dataclass(slots=True)
class Rules:
    """The rules and terminals of a grammar.

    Args:
        prefix: Begins the names of all of them: lower-case letters and digits, a letter first.
    """

    prefix: str
    bodies: dict[str, Part] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)

    def new_name(self) -> str:
        """The name of a rule yet to be set."""
        name = f"{self.prefix}_{len(self.bodies)}"
        self.bodies[name] = NEVER
        return name

    def named(self, part: Part) -> Part:
        """``part`` as a rule of its own, unless it is one already or as short as one."""
        if isinstance(part, Call | Terminal) or part in (NEVER, NOTHING):
            return part
        name = self.new_name()
        self.bodies[name] = part
        return Call(name)

    def terminal(self, body: str) -> str:
        """The name of a terminal."""
        return self.terminals.setdefault(body, f"{self.prefix}_T{len(self.terminals)}".upper())

    def text(self, start: str) -> str | None:
        """The Lark text of ``start`` and all that it needs; None if it has no text."""
        kept = self._pruned()
        if kept[start] == NEVER:
            return None
        lines, seen, todo = [], {start}, [start]
        for name in todo:
            body = kept[name]
            lines.append(f"{name}{self.parameters.get(name, '')}: {self._written(body, outermost=True)}")
            for called in _calls(body):
                if called not in seen:
                    seen.add(called)
                    todo.append(called)
        lines += [f"{name}: {body}" for body, name in self.terminals.items()]
        return "\n".join(lines) + "\n"

    def _pruned(self) -> dict[str, Part]:
        """The bodies without what can never be finished."""
        finite: set[str] = set()
        users: dict[str, set[str]] = {}
        for name, body in self.bodies.items():
            for called in _calls(body):
                users.setdefault(called, set()).add(name)
        todo = list(self.bodies)
        while todo:
            name = todo.pop()
            if name not in finite and _ends(self.bodies[name], finite):
                finite.add(name)
                todo += users.get(name, ())
        return {name: _prune(body, finite) if name in finite else NEVER for name, body in self.bodies.items()}

    def _written(self, part: Part, *, outermost: bool = False) -> str:
        match part:
            case Terminal(body):
                return self.terminal(body)
            case Call(rule):
                return rule
            case Verbatim(text):
                return text
            case Many(inner, low, high):
                counts = (
                    "*" if (low, high) == (0, None) else "?" if (low, high) == (0, 1) else f"{{{low},{_or_none(high)}}}"
                )
                return f"({self._written(inner)}){counts}"
            case Row(parts):
                return " ".join(map(self._written, parts)) or '""'
            case Choice(options):
                text = " | ".join(map(self._written, options))
                return text if outermost else f"({text})"


def _or_none(high: int | None) -> str:
    return "" if high is None else str(high)


def _calls(part: Part) -> Iterator[str]:
    match part:
        case Call(rule):
            yield rule
        case Verbatim(_, calls):
            yield from calls
        case Row(parts) | Choice(parts):
            for inner in parts:
                yield from _calls(inner)
        case Many(inner):
            yield from _calls(inner)


def _ends(part: Part, finite: set[str]) -> bool:
    """Whether a part has a text, if these rules have one."""
    match part:
        case Call(rule):
            return rule in finite
        case Row(parts):
            return all(_ends(inner, finite) for inner in parts)
        case Choice(options):
            return any(_ends(option, finite) for option in options)
        case Many(inner, low):
            return low == 0 or _ends(inner, finite)
    return True


def _prune(part: Part, finite: set[str]) -> Part:
    """A part that has a text, without what has none."""
    match part:
        case Row(parts):
            kept = [_prune(inner, finite) for inner in parts]
            return row(*[inner for inner in kept if inner != NOTHING])
        case Choice(options):
            return choice([_prune(option, finite) for option in options if _ends(option, finite)])
        case Many(inner, low, high):
            return Many(_prune(inner, finite), low, high) if high != 0 and _ends(inner, finite) else NOTHING
    return part
