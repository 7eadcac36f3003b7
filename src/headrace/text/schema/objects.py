"""Rules of objects. Keys are written in the order in which the schema names them, others after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from headrace.text.schema import limits, notation
from headrace.text.schema.builder import Builder
from headrace.text.schema.regex import Language
from headrace.text.schema.rules import NEVER, NOTHING, Many, Part, Terminal, choice, row
from headrace.text.schema.shapes import ANYTHING, Goal, Keys, ObjectShape, StringShape, by_keys


@dataclass(frozen=True, slots=True)
class Member:
    """A key that is written in its place, and the goal of its value."""

    name: str
    goal: Goal
    required: bool


@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keys that are told apart from others only by kind.

    Attributes:
        language: Their texts.
        goal: The goal of their values.
        some: Which of the shape's ``some`` a member of this kind can be: their places in its order.
    """

    language: Language
    goal: Goal
    some: frozenset[int]


def object_part(builder: Builder, goal: Goal, shape: ObjectShape) -> Part:
    """The objects of a shape.

    Raises:
        Refused: They cannot be enforced.
    """
    return choice([_layout(builder, goal, plan) for plan in _plans(builder, goal, shape)])


@dataclass(frozen=True, slots=True)
class _Plan:
    """An object with what it must have some of settled.

    Attributes:
        members: The named keys in order.
        others: The kinds of other keys.
        last: A member that has to come last among the others, so that no later one of the same key undoes it.
        low: The least number of keys.
        high: The greatest.
    """

    members: tuple[Member, ...]
    others: tuple[OtherKeys, ...]
    last: OtherKeys | None
    low: int
    high: int | None


def _plans(builder: Builder, goal: Goal, shape: ObjectShape) -> Iterator[_Plan]:
    """The ways in which an object can have what it must have some of."""
    members = _members(builder, shape)
    some = sorted(shape.some, key=by_keys)
    others = _other_keys(builder, goal, shape, [member.name for member in members], [keys for keys, _ in some])
    ways: list[list[str | OtherKeys]] = []
    for i, (keys, _) in enumerate(some):
        named: list[str | OtherKeys] = [member.name for member in members if builder.has_key(keys, member.name)]
        ways.append(named + [kind for kind in others if i in kind.some])
    if sum(any(isinstance(way, OtherKeys) for way in found) for found in ways) > 1:
        raise builder.refused(
            goal, "not", "asks for two members of unnamed keys at once; name the keys, or ask for one"
        )
    if _product(len(found) for found in ways) > limits.MAX_WITNESSES:
        raise builder.refused(goal, "not", "leaves too many choices of members; use fewer not and if")
    for chosen in product(*ways):
        goals = {member.name: member for member in members}
        last = None
        for way, (_, wanted) in zip(chosen, some, strict=True):
            if isinstance(way, OtherKeys):
                last = replace(way, goal=way.goal | wanted)
            else:
                goals[way] = Member(way, goals[way].goal | wanted, required=True)
        yield _Plan(tuple(goals.values()), others, last, shape.low, shape.high)


def _product(counts: Iterator[int]) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _members(builder: Builder, shape: ObjectShape) -> list[Member]:
    """The keys that a shape names anywhere, with all that it says of their values."""
    named = dict(shape.named)
    names = dict.fromkeys([*named, *sorted(shape.required)])
    for keys, _ in sorted([*shape.covers, *shape.some], key=by_keys):
        names.update(dict.fromkeys(sorted(keys.no_names)))
        names.update(dict.fromkeys(_listed_names(builder, keys)))
    members = []
    for name in names:
        goal = named.get(name, ANYTHING)
        for keys, wanted in shape.covers:
            if builder.has_key(keys, name):
                goal |= wanted
        members.append(Member(name, goal, name in shape.required))
    return members


def _listed_names(builder: Builder, keys: Keys) -> list[str]:
    """The keys that ``propertyNames`` lists, where this is its cover: of all keys that do not reach its goal."""
    if len(keys.goal) != 1:
        return []
    allowed = builder.alternatives.denial(keys.goal, ())
    shapes = [shape for shape in builder.alternatives.of(allowed) if isinstance(shape, StringShape)]
    lists = [builder.strings.values(shape) for shape in shapes if shape.values is not None]
    names = [name for found in lists for name in found]
    return names if len(lists) == len(shapes) and len(names) <= limits.MAX_LISTED_KEYS else []


def _other_keys(
    builder: Builder, goal: Goal, shape: ObjectShape, names: list[str], some: list[Keys]
) -> tuple[OtherKeys, ...]:
    """The kinds of keys that are not named, those of no text left out."""
    every = builder.strings.all
    rest = every.complement(every.union([every.text(name) for name in names]))
    kinds: list[tuple[Language, Goal, frozenset[int]]] = [(rest, ANYTHING, frozenset())]
    demands: list[tuple[Keys, Goal, frozenset[int]]] = [
        (k, g, frozenset()) for k, g in sorted(shape.covers, key=by_keys)
    ]
    demands += [(keys, ANYTHING, frozenset([i])) for i, keys in enumerate(some)]
    for keys, wanted, index in demands:
        inside = builder.key_goal(keys)
        split = []
        for language, reached, indices in kinds:
            split.append((every.intersection([language, inside]), reached | wanted, indices | index))
            split.append((every.intersection([language, every.complement(inside)]), reached, indices))
        kinds = [kind for kind in split if not builder.is_empty(goal, kind[0])]
        if len(kinds) > limits.MAX_KEY_KINDS:
            raise builder.refused(goal, "patternProperties", "tells too many kinds of keys apart; use fewer patterns")
    joined: dict[tuple[Goal, frozenset[int]], list[Language]] = {}
    for language, reached, indices in kinds:
        joined.setdefault((reached, indices), []).append(language)
    possible = [key for key in joined if builder.alternatives.of(key[0])]
    return tuple(OtherKeys(every.union(joined[key]), *key) for key in possible)


def _layout(builder: Builder, goal: Goal, plan: _Plan) -> Part:
    """The members in their order: a rule for each place and number of members so far, as far as numbers matter."""
    low, high = plan.low, plan.high
    nothing = builder.alternatives.nothing
    members = [member for member in plan.members if member.goal != nothing]
    if any(member.required and member.goal == nothing for member in plan.members):
        return NEVER
    if high is not None and high >= len(members) and not plan.others:
        high = None
    most = max(1, min(low, len(members)), 0 if high is None else min(high, len(members)) + 1)
    if (len(members) + 1) * (most + 1) > limits.MAX_OBJECT_STATES:
        raise builder.refused(
            goal, "maxProperties" if high is not None else "minProperties", "counts too many properties; name fewer"
        )
    after = [_others(builder, goal, plan, count, high) for count in range(most + 1)]
    for member in reversed(members):
        key, value = _key(builder, member.name), builder.goal(member.goal)
        before: list[Part] = []
        for count in range(most + 1):
            written = row(*_comma(builder, count), key, value, after[min(count + 1, most)])
            if high is not None and count >= high:
                written = NEVER
            options = [written] if member.required else [written, after[count]]
            before.append(builder.rules.named(choice([option for option in options if option != NEVER])))
        after = before
    return row(Terminal(builder.spacing.opening("{")), after[0], Terminal(builder.spacing.closing("}")))


def _others(builder: Builder, goal: Goal, plan: _Plan, count: int, high: int | None) -> Part:
    """What may follow ``count`` named members."""
    comma = Terminal(builder.spacing.comma)
    room = None if high is None else high - count
    missing = max(0, plan.low - count - (plan.last is not None))
    if room is not None and room < (plan.last is not None):
        return NEVER
    if missing and not plan.others:
        return NEVER
    if missing + (plan.last is not None) > 1:
        message = "asks for two or more members of unnamed keys, which no grammar can keep different; name the keys"
        raise builder.refused(goal, "minProperties", message)
    member = choice([row(_other_key(builder, kind), builder.goal(kind.goal)) for kind in plan.others])
    if plan.last is not None:
        final = row(_other_key(builder, plan.last), builder.goal(plan.last.goal))
        most = None if room is None else room - 1
        return row(*_comma(builder, count), Many(row(member, comma), 0, most), final)
    if not plan.others:
        return NOTHING
    if count:
        return Many(row(comma, member), missing, room)
    if room == 0:
        return NOTHING
    some = row(member, Many(row(comma, member), 0, None if room is None else room - 1))
    return some if missing else Many(some, 0, 1)


def _comma(builder: Builder, count: int) -> list[Part]:
    return [Terminal(builder.spacing.comma)] if count else []


def _key(builder: Builder, name: str) -> Terminal:
    return Terminal(f"({notation.literal(notation.json_string(name))} {builder.spacing.colon})")


def _other_key(builder: Builder, kind: OtherKeys) -> Terminal:
    return Terminal(f"({builder.string_body(kind.language)} {builder.spacing.colon})")
