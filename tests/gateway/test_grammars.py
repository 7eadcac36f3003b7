"""Grammars on trial, and whom they hold up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.errors import InvalidInput
from headrace.gateway.grammars import Grammars
from headrace.models.opening import open_checkpoint
from headrace.text import load_tokenizer
from headrace.text.grammar import choice_source, grammar_source

SLOW = "start: T\nT: /([a-z ]*a[a-z ]{30}b)*/ & /([a-z ]*[a-m][a-z ]{31}c)*/ & ~/.*x.{17}y%d.*/\n"


def test_many_slow_grammars_hold_up_nobody_else(smollm2: Path):
    async def tried() -> None:
        grammars = Grammars(load_tokenizer(open_checkpoint(smollm2).tokenizer))
        good = choice_source(["a", "b"], field="choice")
        await grammars.check(good, "choice")
        slow = [
            asyncio.create_task(grammars.check(grammar_source(SLOW % n, field="grammar"), "grammar")) for n in range(40)
        ]
        await asyncio.sleep(0)
        await grammars.check(good, "choice")  # it is known
        assert await asyncio.to_thread(str, 1) == "1"  # there are threads for other work
        assert not any(task.done() for task in slow)
        for task in slow[1:]:
            task.cancel()
        # Nor are those tried that nobody waits for.
        await grammars.check(choice_source(["c"], field="choice"), "choice")
        with pytest.raises(InvalidInput, match="longer than 2 s"):
            await slow[0]
        grammars.close()

    asyncio.run(asyncio.wait_for(tried(), 60))
