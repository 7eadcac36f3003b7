"""What is planned ahead of execution, in the corners that a random mix seldom reaches."""

from byte_executor import VOCAB, ByteExecutor, expected
from engines import collect, request

from headrace.engine.engine import Engine
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.memory.behind import Tiers
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.spec import ModelSpec

PAGE = 4


class AlwaysInNeed(Tiers):
    """Wants a batch at every step, as transfers do that wait for commands."""

    needs_batch = True


class OneFault:
    """The first batch of two rows that hold that many tokens each fails."""

    def __init__(self, start):
        self.start, self.failed = start, False

    def __call__(self, batch, tokens):
        if not self.failed and batch.starts.tolist() == [self.start] * 2:
            self.failed = True
            raise RuntimeError("an accident")


def small_engine(fault=lambda batch, tokens: None, tiers=Tiers, slots=4):
    groups = [MemoryGroup(True, PageForm.of(1, [(1, 8), (2, 4)]).in_slabs(144))]
    memory = StateMemory(groups, nbytes=40 * 144, page_tokens=PAGE, poison=True)
    executor = ByteExecutor(memory, slots, 60, ahead=1, fault=fault)
    spec = ModelSpec("m", "none", VOCAB, 1, 60, (), (), 0)
    limits = SchedulerLimits(slots, 32, None)
    return groups, Engine(
        spec, executor, memory, limits, tiers(memory), context_length=60, constraint_for=lambda params: None
    )


def test_rows_that_changed_outlive_a_batch_that_only_carries_commands():
    # Both run alone after the fault. The second one's page becomes the first one's, and no row tells so at once.
    fault = OneFault(PAGE - 1)
    groups, engine = small_engine(fault, AlwaysInNeed)
    results = {}
    for number in range(2):
        engine.add(request(number, [1], SamplingParams(temperature=0, max_tokens=20)))
    for _ in range(100):
        collect(engine, results, engine.step())
        engine.scheduler.check()
    assert fault.failed
    for number in range(2):
        assert results[number, 0].tokens == expected(groups, [1], 20)
