"""Genomes: changes keep them valid, they survive being written down, and they say what differs."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.search.genes import DEFAULT, Gene, GeneSpace, Genome, InvalidGenome, gene


@st.composite
def spaces(draw):
    genes = []
    for n in range(draw(st.integers(1, 12))):
        choices = tuple(draw(st.lists(st.integers(-5, 600), min_size=1, max_size=6, unique=True)))
        default = draw(st.sampled_from(choices))
        block = draw(st.sampled_from("abc"))
        genes.append(Gene(f"{block}/g{n}", block, choices, default, f"place {n}", tuple(f"v{c}" for c in choices)))
    return GeneSpace(genes)


def valid(space, genome):
    assert space.genome(genome.as_dict()) == genome
    assert all(space.genes[name].default != value for name, value in genome.values)


@given(spaces(), st.integers(0, 2**32), st.integers(1, 5))
def test_changes_are_valid_repeatable_and_stay_in_their_block(space, seed, count):
    for block in space.blocks:
        rng, again = random.Random(seed), random.Random(seed)
        a = space.draw(rng, block)
        b = space.mutate(a, rng, block, count)
        c = space.crossover(a, b, rng, block)
        for genome in (a, b, c):
            valid(space, genome)
            assert space.only(genome, block) == genome
        assert a == space.draw(again, block)
        assert b == space.mutate(a, again, block, count)
        assert c == space.crossover(a, b, again, block)
        changed = [g.name for g in space.genes.values() if space.value(a, g.name) != space.value(b, g.name)]
        assert len(changed) == min(count, len(space.blocks[block]))
        for name in space.genes:
            assert space.value(c, name) in (space.value(a, name), space.value(b, name))


@given(spaces(), st.integers(0, 2**32))
def test_a_genome_survives_json_and_has_one_fingerprint(space, seed):
    rng = random.Random(seed)
    genome = space.join(space.draw(rng, block) for block in space.blocks)
    again = space.genome(json.loads(json.dumps(genome.as_dict())))
    assert (again, again.fingerprint) == (genome, genome.fingerprint)
    assert space.join(space.only(genome, block) for block in space.blocks) == genome
    assert (len(space.describe(genome)) == 0) == (genome == DEFAULT)
    assert len(space.describe(genome)) == len(genome.values)
    assert space.describe(genome, genome) == []


def test_words():
    space = GeneSpace(gene("a/x.rows", "a", "down_proj", (1, 2, 4), 4, "{} rows") + gene("a/y", "a", "p", (), 3, "{}"))
    assert list(space.genes) == ["a/x.rows"]
    assert space.describe(space.genome({"a/x.rows": 2})) == ["down_proj: 2 rows instead of 4 rows"]


@pytest.mark.parametrize("values", [{"none": 1}, {"a": 7}, {"a": True}, {"a": "1"}, {"a": None}])
def test_what_is_of_another_program_is_refused(values):
    space = GeneSpace([Gene("a", "b", (1, 2), 1, "", ("", ""))])
    with pytest.raises(InvalidGenome):
        space.genome(values)


def test_a_default_must_be_a_choice_and_names_must_differ():
    with pytest.raises(InvalidGenome, match="default"):
        GeneSpace([Gene("a", "b", (1, 2), 3, "", ("", ""))])
    one = Gene("a", "b", (1,), 1, "", ("",))
    with pytest.raises(InvalidGenome, match="one name"):
        GeneSpace([one, one])


def test_the_default_is_empty():
    assert Genome() == DEFAULT
    assert DEFAULT.fingerprint == Genome(()).fingerprint
