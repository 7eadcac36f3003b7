"""Runs of ``bench serve`` for tests: how to measure, and whoever watches."""

import os
import signal

from headrace.bench.plan import Closed, Load, Synthetic
from headrace.bench.results.measure import parse_margin
from headrace.bench.serve import Settings
from headrace.bench.workload.lengths import parse_lengths


class Watch:
    """Counts rounds, and may end one with Ctrl-C."""

    def __init__(self, interrupt_in_round=None):
        self.rounds, self.interrupt_in_round = 0, interrupt_in_round

    def begin(self, title):
        self.rounds += 1

    def snapshot(self, snapshot):
        if self.rounds == self.interrupt_in_round and snapshot.begun:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self, found):
        pass


def settings(requests=20, arrivals=None, kind="random", turns="1", salt="x", **given):
    workload = Synthetic(
        kind=kind,
        requests=requests,
        prompt=parse_lengths("32", "prompt"),
        output=parse_lengths("4", "output"),
        system_prompts=2,
        system=parse_lengths("16", "system"),
        turns=parse_lengths(turns, "turns"),
        think=0.0,
    )
    load = Load(workload=workload, arrivals=arrivals or Closed(concurrency=2), seed=0)
    margins = {"warmup": parse_margin("10%", "warmup"), "cooldown": parse_margin("10%", "cooldown")}
    return Settings(**{"load": load, "salt": salt, **margins, **given})
