"""The search on landscapes that are known: it finds the best, keeps to its time, and can be repeated."""

import io
import json
import random

import pytest
from landscapes import Landscape, best_value, crashes_sometimes, space

from headrace.compiler.search.genes import DEFAULT, Gene, GeneSpace
from headrace.compiler.search.genetic import Search, accepted
from headrace.compiler.search.record import InvalidRecord, Recorder, Replayer, read_record, settings_of
from headrace.compiler.search.trials import Baseline, Confirmation, Settings, Trial

WEIGHTS = (0.5, 0.5)


def settings(seconds=1000.0, **changes):
    return Settings(WEIGHTS, seconds, **{"patience": 30, **changes})


def test_it_finds_the_optimum():
    genes = space()
    found = Search(genes, Landscape(genes), settings()).run()
    assert found.genome.as_dict() == {n: best_value(n) for n in genes.genes if best_value(n)}
    assert found.confirmation.ratios[0] < 0.9


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_lead_it_astray(seed):
    genes = space()
    quiet = Landscape(genes)
    found = Search(genes, Landscape(genes, rng=random.Random(seed), noise=0.01), settings(seed=seed)).run()
    ratio = quiet.confirm(found.genome).ratios[0]
    assert ratio < 0.88, found.genome


@pytest.mark.parametrize("seed", range(5))
def test_where_nothing_is_to_be_gained_the_default_stays(seed):
    """A flat landscape under noise: what seems faster is not."""

    class Flat(Landscape):
        def _ratio(self, genome, block):
            return 2.718281828 ** self.rng.gauss(0, 0.02)

    genes = space()
    found = Search(genes, Flat(genes, rng=random.Random(seed), noise=0.02), settings(seed=seed)).run()
    assert found.genome == DEFAULT
    assert found.confirmation is None


@pytest.mark.parametrize("seconds", [3.5, 10.0, 30.0])
def test_it_keeps_to_its_time(seconds):
    genes = space()
    measurer = Landscape(genes, trial_seconds=0.2)
    found = Search(genes, measurer, settings(seconds)).run()
    # One confirmation may follow the one that was reserved.
    assert measurer.elapsed() <= seconds + 2.0 + 0.2 * 9
    assert found.ended == "the time is up"


def test_it_says_how_long_it_must_be_to_try_anything():
    genes = space()
    found = Search(genes, Landscape(genes, trial_seconds=0.2), settings(0.01)).run()
    assert found.tried == 0
    assert found.ended.startswith("the time is up before a choice was tried; ")


def test_it_ends_early_where_nothing_is_gained():
    genes = space(blocks=1, genes=12)
    measurer = Landscape(genes)
    measurer._ratio = lambda genome, block: 1.0
    assert Search(genes, measurer, settings(patience=3)).run().ended == "3 generations gained nothing"


def test_a_small_space_is_exhausted():
    genes = space(blocks=1, genes=1)
    found = Search(genes, Landscape(genes), settings()).run()
    assert found.ended == "everything was tried"
    assert found.tried == 5


def test_same_seed_same_search():
    runs = []
    for seed in (1, 1, 2):
        genes = space()
        measurer = Landscape(genes)
        Search(genes, measurer, settings(20.0, seed=seed)).run()
        runs.append(measurer.evaluated)
    assert runs[0] == runs[1] != runs[2]


def test_nothing_is_tried_twice_but_the_best():
    genes = space()
    measurer = Landscape(genes)
    Search(genes, measurer, settings(20.0)).run()
    for block in genes.blocks:
        tried = [genes.only(g, block) for g in measurer.evaluated if genes.only(g, block).values]
        for at, only in enumerate(tried):
            assert only not in tried[:at] or tried.count(only) > 1
    assert len({g for g in measurer.evaluated if g != DEFAULT}) > 10


def test_what_is_rejected_is_counted_and_never_chosen():
    genes = space()
    measurer = Landscape(genes, bad=crashes_sometimes)
    found = Search(genes, measurer, settings()).run()
    assert found.rejected > 0
    assert found.pruned > 0
    assert all(crashes_sometimes(genes.only(found.genome, block)) is None for block in genes.blocks)
    assert found.genome != DEFAULT


def test_the_default_stays_if_the_whole_is_not_faster():
    genes = space()
    measurer = Landscape(genes)
    measurer.confirm = lambda genome: Confirmation("ok", (1.0, 1.0), (1.001, 0.999), 0.01)
    assert Search(genes, measurer, settings()).run().genome == DEFAULT
    measurer = Landscape(genes)
    measurer.confirm = lambda genome: Confirmation("computes something else")
    assert Search(genes, measurer, settings()).run().genome == DEFAULT


@pytest.mark.parametrize(
    ("before", "after", "noise", "wanted"),
    [
        ((1.0, 1.0), (0.9, 0.9), 0.01, True),
        ((1.0, 1.0), (0.9, 0.9), 0.2, False),
        ((1.0, 1.0), (0.5, 1.1), 0.01, False),  # one workload loses
        ((1.0, 1.0), (0.5, 1.005), 0.01, True),
        ((1.0, 1.0), (1.0, 1.0), 0.0, False),
    ],
)
def test_accepted(before, after, noise, wanted):
    assert accepted(Confirmation("ok", before, after, noise), WEIGHTS) is wanted


def test_an_earlier_result_is_where_it_starts():
    genes = space()
    start = tuple(sorted((n, best_value(n)) for n in genes.genes if best_value(n)))
    measurer = Landscape(genes)
    found = Search(genes, measurer, settings(5.0, start=start)).run()
    assert measurer.evaluated[1].values == start
    assert found.genome.values == start


def test_an_interrupt_keeps_the_best_so_far():
    genes = space()
    measurer = Landscape(genes)
    original, calls = measurer.evaluate, []

    def evaluate(genomes):
        calls.append(genomes)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(genomes)

    measurer.evaluate = evaluate
    found = Search(genes, measurer, settings()).run()
    assert found.ended == "interrupted"
    assert found.genome != DEFAULT


# -- records


def recorded(genes, measurer, chosen):
    file = io.StringIO()
    recorder = Recorder(measurer, file, {"settings": json.loads(json.dumps(chosen, default=vars_of))})
    found = Search(genes, recorder, chosen).run()
    recorder.close({"genome": found.genome.as_dict()})
    return found, file.getvalue()


def vars_of(value):
    return {name: getattr(value, name) for name in value.__slots__}


@pytest.mark.parametrize("interrupt", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_ends_at_the_same_genome(seed, interrupt):
    genes = space()
    measurer = Landscape(genes, rng=random.Random(seed), noise=0.02, bad=crashes_sometimes)
    if interrupt:
        original = measurer.evaluate

        def evaluate(genomes):
            if measurer.now > 5:
                raise KeyboardInterrupt
            return original(genomes)

        measurer.evaluate = evaluate
    found, text = recorded(genes, measurer, settings(20.0, seed=seed))
    first, lines = read_record(text)
    again = Search(genes, Replayer(lines, genes), settings_of(first)).run()
    assert again == found
    assert json.loads(text.splitlines()[-1])["result"]["genome"] == found.genome.as_dict()


def test_a_record_of_another_search_is_refused():
    genes = space()
    _, text = recorded(genes, Landscape(genes), settings(20.0))
    first, lines = read_record(text)
    other = Search(genes, Replayer(lines, genes), settings(20.0, seed=9))
    with pytest.raises(InvalidRecord, match="another program"):
        other.run()
    with pytest.raises(InvalidRecord):
        Search(genes, Replayer(lines[:3], genes), settings_of(first)).run()


@pytest.mark.parametrize("text", ["", "{}", "[]", "x", '{"record": 2}', '{"record": 1}\nx', "\0", '{"record": 1}\n3'])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(InvalidRecord):
        read_record(text)


def test_settings_and_results_are_checked():
    with pytest.raises(InvalidRecord, match="settings"):
        settings_of({"settings": {"weights": "x"}})
    genes = space()
    with pytest.raises(InvalidRecord, match="no such result"):
        Replayer([{"call": "baseline", "result": {"seconds": 3}}], genes).baseline()


def test_a_space_without_choices():
    genes = GeneSpace([Gene("a", "b", (1,), 1, "", ("",))])

    class Nothing:
        def elapsed(self):
            return 0.0

        def baseline(self):
            return Baseline((1.0, 1.0), {}, {})

        def evaluate(self, genomes):
            return [{} for _ in genomes]

        def confirm(self, genome):
            return Confirmation()

    assert Search(genes, Nothing(), settings()).run().genome == DEFAULT
    assert Trial().verdict == "ok"
