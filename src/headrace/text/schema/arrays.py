"""Rules of arrays."""

from __future__ import annotations

from itertools import product

from headrace.text.schema import limits
from headrace.text.schema.builder import LONGEST, Builder, Scalar
from headrace.text.schema.rules import NEVER, NOTHING, Call, Choice, Many, Part, Terminal, Verbatim, choice, row
from headrace.text.schema.shapes import ArrayShape, Count, Goal


def array_part(builder: Builder, goal: Goal, shape: ArrayShape) -> Part:
    """The arrays of a shape.

    Raises:
        Refused: They cannot be enforced.
    """
    if shape.low > LONGEST:
        raise builder.refused(goal, "minItems", "asks for more items than any text has; use a lower one")
    if shape.unique is False:
        raise builder.refused(goal, "uniqueItems", "cannot be enforced under not; leave it out")
    if shape.unique and (shape.high is None or shape.high > 1):
        inside = _unique(builder, goal, shape)
    elif shape.counts:
        inside = _counted(builder, goal, shape)
    else:
        inside = _plain(builder, shape)
    return row(Terminal(builder.spacing.opening("[")), inside, Terminal(builder.spacing.closing("]")))


def _plain(builder: Builder, shape: ArrayShape) -> Part:
    """Items one after the other: from the last place on back, with what may follow each."""
    comma = Terminal(builder.spacing.comma)
    high = None if shape.high is None or shape.high > LONGEST else shape.high
    rest = builder.goal(shape.rest)
    first = shape.first if high is None else shape.first[:high]
    done = len(first)
    needed = max(0, shape.low - max(1, done))
    room = None if high is None else high - max(1, done)
    if done:
        after: Part = Many(row(comma, rest), needed, room)
    elif room is not None and room < 0:
        return NOTHING
    else:
        after = row(rest, Many(row(comma, rest), needed, room))
        return after if shape.low else Many(after, 0, 1)
    for i in reversed(range(done)):
        item = row(*([comma] if i else []), builder.goal(first[i]), after)
        after = builder.rules.named(item if i < shape.low else Many(item, 0, 1))
    return after


def _counted(builder: Builder, goal: Goal, shape: ArrayShape) -> Part:
    """Items of which some are counted: a rule for each state, of the places up to it.

    A state is the number of items and the counts, each as far as it matters. Rules recur to the left, which costs the
    parser the least. An item that counts has to reach the goal; one that does not must fail it only where there is a
    greatest number. So an array may be read in several ways, and one that no reading fits is refused.
    """
    counts = sorted(shape.counts, key=lambda count: (count.start, sorted(count.goal)))
    most = max(1, len(shape.first), shape.low, shape.high or 0, *(count.start for count in counts))
    begin = (0, *[0] * len(counts))
    names: dict[tuple[int, ...], str] = {begin: ""}
    options: dict[str, list[Part]] = {}
    comma = Terminal(builder.spacing.comma)
    todo = [begin]
    for state in todo:
        if shape.high is not None and state[0] >= shape.high:
            continue
        for item, after in _steps(builder, goal, shape, counts, state, most):
            if after not in names:
                names[after] = builder.rules.new_name()
                todo.append(after)
            before: tuple[Part, ...] = (Call(names[state]), comma) if state != begin else ()
            options.setdefault(names[after], []).append(row(*before, builder.goal(item)))
        if len(todo) > limits.MAX_ARRAY_STATES:
            raise builder.refused(
                goal, "contains", "makes too many counts with the bounds beside it; use smaller bounds"
            )
    for name, parts in options.items():
        builder.rules.bodies[name] = choice(parts)
    ends = [state for state in todo if state[0] >= shape.low and _enough(counts, state)]
    return choice([Call(names[state]) if state != begin else NOTHING for state in ends])


def _enough(counts: list[Count], state: tuple[int, ...]) -> bool:
    return all(number >= count.low for count, number in zip(counts, state[1:], strict=True))


def _steps(
    builder: Builder, goal: Goal, shape: ArrayShape, counts: list[Count], state: tuple[int, ...], most: int
) -> list[tuple[Goal, tuple[int, ...]]]:
    """What the next item may be, and the state after it."""
    place = state[0]
    steps: list[tuple[Goal, tuple[int, ...]]] = [
        (shape.first[place] if place < len(shape.first) else shape.rest, (min(place + 1, most),))
    ]
    for count, number in zip(counts, state[1:], strict=True):
        denied = builder.alternatives.denial(count.goal, builder.alternatives.place(goal))
        grown: list[tuple[Goal, tuple[int, ...]]] = []
        for item, after in steps:
            if place < count.start or (count.high is None and number >= count.low):
                grown.append((item, (*after, number)))
                continue
            grown.append((item if count.high is None else item | denied, (*after, number)))
            if count.high is None or number < count.high:
                grown.append((item | count.goal, (*after, number + 1)))
        steps = grown
    return [step for step in steps if builder.alternatives.of(step[0])]


def _unique(builder: Builder, goal: Goal, shape: ArrayShape) -> Part:
    """Different items, of lists of values."""
    places = len(shape.first) if shape.high is None else min(len(shape.first), shape.high)
    lists = [builder.listed(item) for item in shape.first[:places]]
    rest = builder.listed(shape.rest) if shape.high is None or shape.high > places else []
    if rest is None or any(found is None for found in lists) or shape.counts:
        message = "cannot be enforced for items that no enum lists; leave it out, or list their values"
        raise builder.refused(goal, "uniqueItems", message)
    if not lists:
        return _distinct(builder, goal, shape, rest)
    return _listed_arrays(builder, goal, shape, [found or [] for found in lists], rest)


def _listed_arrays(
    builder: Builder, goal: Goal, shape: ArrayShape, lists: list[list[Scalar]], rest: list[Scalar]
) -> Part:
    """All the arrays one by one."""
    comma = Terminal(builder.spacing.comma)
    most = min(len(lists) + len(rest) if shape.high is None else shape.high, 8)
    found: list[Part] = []
    for size in range(shape.low, most + 1):
        places = [lists[i] if i < len(lists) else rest for i in range(size)]
        for items in product(*places):
            if len({(type(item.value), item.value) for item in items}) == size:
                found.append(row(*[part for item in items for part in (comma, Terminal(item.body))][1:]))
            if len(found) > limits.MAX_LISTED_ARRAYS:
                break
    longest = len(lists) + len(rest) if shape.high is None else shape.high
    if len(found) > limits.MAX_LISTED_ARRAYS or longest > 8:
        raise builder.refused(goal, "uniqueItems", "has too many values to choose from beside prefixItems; list fewer")
    return Choice(tuple(found))


def _distinct(builder: Builder, goal: Goal, shape: ArrayShape, values: list[Scalar]) -> Part:
    """Any of the values, none twice: the parameter of the rules holds a bit for each that is there."""
    if shape.low > len(values):
        return NEVER
    if not values:
        return NOTHING
    most = len(values) if shape.high is None else min(shape.high, len(values))
    rules = builder.rules
    item, tail = rules.new_name(), rules.new_name()
    options = [
        f"{rules.terminal(scalar.body)} {tail}::set_bit({i}) %if bit_clear({i})" for i, scalar in enumerate(values)
    ]
    comma = rules.terminal(builder.spacing.comma)
    rules.bodies[item] = Verbatim(" | ".join(options), (tail,))
    end = f'"" %if bit_count_ge(_, {shape.low})'
    rules.bodies[tail] = Verbatim(f"{end} | {comma} {item}::_ %if bit_count_lt(_, {most})", (item,))
    rules.parameters[item] = rules.parameters[tail] = "::_"
    start = Verbatim(f"{item}::0x0", (item,))
    return start if shape.low else Many(start, 0, 1)
