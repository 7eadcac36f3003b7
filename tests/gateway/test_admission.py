"""Who may come in: the account of samples, by urgency."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.admission import Admission, place_for
from headrace.gateway.job import Job
from headrace.text.prompt import Prompt

SLOTS = 4


def jobs(count=1, n=1, priority=0):
    return [Job(Prompt((5,)), SamplingParams(n=n), received=0.0, tokenized=0.0, priority=priority)] * count


def test_so_many_run_and_wait_and_no_more():
    found = Admission(max_queue=6)
    places = [found.enter(jobs(), SLOTS) for _ in range(11)]
    assert places[10] is None
    assert None not in places[:10]
    found.leave(places[3])
    assert found.enter(jobs(n=2), SLOTS) is None
    assert found.enter(jobs(), SLOTS) is not None


@pytest.mark.parametrize(("count", "n", "samples"), [(1, 1, 1), (7, 1, 7), (2048, 1, 8), (3, 4, 8), (1, 40, 40)])
def test_a_request_takes_no_more_places_than_it_has_in_the_engine(count, n, samples):
    """Twice the slots, so that some wait to take the place of those that run; samples of one prompt go together."""
    assert place_for(jobs(count, n), slots=SLOTS, limit=10).samples == samples


def test_a_bulk_leaves_room_for_others():
    found = Admission(max_queue=8)
    assert found.enter(jobs(2048), SLOTS).samples == 8
    assert found.enter(jobs(4), SLOTS) is not None
    assert found.enter(jobs(), SLOTS) is None


def test_what_is_larger_than_the_queue_is_let_in_when_nothing_is_there():
    found = Admission(max_queue=0)
    large = found.enter(jobs(n=40), SLOTS)
    assert large.samples == 40
    assert found.enter(jobs(priority=-1), SLOTS) is None
    found.leave(large)
    one = found.enter(jobs(), SLOTS)
    assert found.enter(jobs(n=40), SLOTS) is None
    found.leave(one)
    assert found.held == 0


def test_the_urgent_find_a_place_where_others_do_not():
    found = Admission(max_queue=6)
    assert found.enter(jobs(n=10), SLOTS) is not None
    assert found.enter(jobs(priority=1), SLOTS) is None
    assert found.enter(jobs(), SLOTS) is None
    assert found.enter(jobs(n=6, priority=-1), SLOTS) is not None
    assert found.enter(jobs(n=5, priority=-1), SLOTS) is None  # ten of one urgency
    assert found.enter(jobs(n=4, priority=-2), SLOTS) is not None
    assert found.enter(jobs(priority=-3), SLOTS) is None  # twenty in all


STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(-2, 2)),
        st.integers(0, 20).map(lambda which: (which,)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 12), st.integers(1, 8))
def test_the_account_is_kept(steps, max_queue, slots):
    """However requests come and go: limits hold, but for one that is alone, and nothing is left at the end."""
    found, inside, limit = Admission(max_queue), [], max_queue + slots
    for step in steps:
        if len(step) == 1:
            if inside:
                found.leave(inside.pop(step[0] % len(inside)))
        else:
            count, n, priority = step
            place = found.enter(jobs(count, n, priority), slots)
            assert place is not None or inside, "refused although nothing is there"
            if place is not None:
                assert max(n, 1) <= place.samples <= count * n
                inside.append(place)
        assert found.held == sum(place.samples for place in inside)
        assert found.held <= max(2 * limit, *(place.samples for place in inside), 0)
    for place in inside:
        found.leave(place)
    assert found.held == 0
