"""Constraints that follow a script, engines for them, and a clock that passes in sleep."""

from automata import Anything, walks
from byte_engines import byte_engine
from byte_executor import VOCAB
from sampling import mask_of

from headrace.engine.sampling_params import SamplingParams
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup

FULL = [MemoryGroup(True, PageForm.of(1, [(1, 8), (2, 4)]).in_slabs(144))]
PROMPT = [1, 2, 3, 4, 5]


class Script(Anything):
    """Allows what is written for each token of the output in turn, then anything.

    Args:
        steps: Allowed tokens; None: any.
        notes: Is told of each mask that is made.
    """

    def __init__(self, steps, vocab=VOCAB, notes=None):
        self._steps, self._vocab, self._notes = list(steps), vocab, [] if notes is None else notes

    def allowed(self):
        self._notes.append("?")
        return mask_of(self._steps[0], self._vocab) if self._steps and self._steps[0] else None

    def accept(self, token):
        if self._steps:
            wanted = self._steps.pop(0)
            assert not wanted or token in wanted


def greedy(count, grammar=None, **more):
    return SamplingParams(temperature=0, max_tokens=count, grammar=grammar, **more)


def scripted(steps, ahead=1, slots=4, **how):
    """An engine whose requests with the grammar "s" follow a script, and all other ones walk."""
    engine = byte_engine(FULL, slabs=60, context=200, slots=slots, ahead=ahead, **how)
    others = walks(VOCAB)
    engine._constraint_for = lambda params: Script(steps) if params.grammar == "s" else others(params)
    return engine


class Clock:
    """Time that passes only in sleep."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
