"""Placement in loops, checked by walking through the loops that it makes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.codegen.nest import Item, Level, LevelKind, arrange, path_of

LEVELS = tuple(Level(f"x{n}", LevelKind.LOOP, 1, 2, f"i{n}") for n in range(4))


@st.composite
def values(draw):
    """Values with the axes that they depend on and what they read, and folds over what they read."""
    items = {}
    for at in range(draw(st.integers(1, 9))):
        needs = tuple(sorted(draw(st.sets(st.integers(0, at - 1), max_size=3)))) if at else ()
        axes = {level for need in needs for level in items[need].path}
        axes |= draw(st.sets(st.sampled_from(LEVELS), max_size=2))
        inside = tuple(level for level in LEVELS if level in axes)
        dropped = draw(st.sets(st.sampled_from(inside), max_size=2)) if inside and draw(st.booleans()) else set()
        items[at] = Item(tuple(level for level in inside if level not in dropped), inside, needs)
    return items


def schedule(nest, items):
    """Everything that happens, in order: (value, where in its loops, whether it is the last step of a fold).

    Loops that two places share are one, walked once: each scope's contents go by time, values after loops that are
    over and before those that are not.
    """
    events = []

    def walk(scope, point):
        entries = []
        loops = {}
        for at, place in nest.computed.items():
            depth = len(scope)
            if len(place.path) < depth or place.scope(depth) != scope:
                continue
            if len(place.path) == depth:
                entries.append((place.times[depth], 0, at))
            else:
                loops[place.path[depth], place.times[depth]] = place.scope(depth + 1)
        entries += [(time, 1, (level, inner)) for (level, time), inner in loops.items()]
        # Loops of one time are independent of each other: their order is that of levels.
        entries.sort(key=lambda e: (e[0], e[1], e[2] if e[1] == 0 else LEVELS.index(e[2][0])))
        for _, kind, what in entries:
            if kind == 0:
                events.append((what, dict(point)))
            else:
                level, inner = what
                for i in range(level.count):
                    walk(inner, {**point, level: i})

    walk((), {})
    return events


def check(items):
    nest = arrange(items)
    events = schedule(nest, items)
    when = {}
    for time, (at, point) in enumerate(events):
        when.setdefault((at, tuple(point[level] for level in items[at].inside)), []).append(time)
    for at, item in items.items():
        points = list(itertools.product(*(range(level.count) for level in item.inside)))
        assert [len(when.get((at, p), ())) for p in points] == [1] * len(points), "computed once at each point"
        for need in item.needs:
            for p in points:
                here = dict(zip(item.inside, p, strict=True))
                source = items[need]
                folded = [level for level in source.inside if level not in source.path]
                steps = itertools.product(*(range(level.count) for level in folded))
                for q in steps:
                    there = here | dict(zip(folded, q, strict=True))
                    key = (need, tuple(there[level] for level in source.inside))
                    assert when[key][0] < when[at, p][0], f"{need} before {at}"
    return nest


@given(values())
def test_every_value_comes_after_all_that_it_reads(items):
    check(items)


@given(values())
def test_what_is_no_array_is_read_in_the_loops_where_it_is_computed(items):
    """A plain variable lives in one scope; an array spans exactly the loops that its readers do not share with it."""
    nest = arrange(items)
    for at, item in items.items():
        readers = [r for r, other in items.items() if at in other.needs]
        kept = nest.kept[at]
        available = nest.available[at]
        for reader in readers:
            place = nest.computed[reader]
            shared = min(kept, len(available.path))
            assert place.scope(shared) == available.scope(shared)
        if not item.folds and kept == len(item.path):
            assert all(nest.computed[r].scope(kept) == available.scope(kept) for r in readers)


@given(values())
def test_a_value_is_computed_in_no_loop_that_it_does_not_depend_on(items):
    nest = arrange(items)
    assert all(nest.computed[at].path == item.inside for at, item in items.items())


def test_what_a_loop_does_not_change_is_computed_outside():
    """The picture in the module: ``q`` does not depend on ``r``, ``s`` is the same for all of ``ki``."""
    kb, r, ki = (Level(name, LevelKind.LOOP, 1, 2, name) for name in ("kb", "r", "ki"))
    items = {
        0: Item((kb, ki), (kb, ki), ()),  # q
        1: Item((kb,), (kb,), ()),  # s
        2: Item((kb, r), (kb, r, ki), (0,)),  # sum over ki
        3: Item((r,), (kb, r), (1, 2)),  # sum over kb
    }
    nest = arrange(items)
    assert [nest.computed[at].path for at in items] == [(kb, ki), (kb,), (kb, r, ki), (kb, r)]
    outer = {nest.computed[at].scope(1) for at in items}
    assert len(outer) == 1  # one loop over kb
    assert nest.computed[2].scope(2) == nest.computed[3].scope(2)  # and in it one over r
    assert nest.kept[0] == 1  # q: an array over ki
    assert nest.kept[3] == 0  # y: an array over r
    assert nest.kept[1] == 1
    assert nest.kept[2] == 2  # d: a plain variable


def test_values_live_no_longer_than_they_must():
    """Second pass: a value moves down to its first reader."""
    (a,) = (Level("a", LevelKind.LOOP, 1, 2, "a"),)
    items = {
        0: Item((), (), ()),
        1: Item((), (a,), ()),  # a loop that does not need 0
        2: Item((), (), (0, 1)),
    }
    nest = arrange(items)
    assert nest.computed[0].times[0] > nest.computed[1].times[0]


@pytest.mark.parametrize("axes", [set(), {"x0"}, {"x3", "x1"}])
def test_a_path_has_the_loops_of_some_axes_from_outer_to_inner(axes):
    lanes = Level("x1", LevelKind.LANES, 1, 16, "lane")
    assert path_of((*LEVELS, lanes), axes) == tuple(level for level in LEVELS if level.axis in axes)
