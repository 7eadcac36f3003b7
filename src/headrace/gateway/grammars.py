"""``Grammars``: what requests ask of their answers is made a grammar and tried before it reaches the engine.

Either may take seconds, so both happen aside: a grammar is made on a thread and tried in a process, one at a time.
Requests with nothing new to be made or tried do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.api.errors import unavailable
from headrace.errors import InvalidInput
from headrace.text.grammar import GrammarCheck, GrammarError
from headrace.text.tokenizer import Tokenizer

T = TypeVar("T")


class Grammars:
    """Makes and tries grammars for one model.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._trial: GrammarCheck | None = None
        # Threads of their own: large prompts are tokenized on those that everything else shares.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="make-grammar")
        self._trier = ThreadPoolExecutor(1, thread_name_prefix="try-grammar")

    async def made(self, make: Callable[..., T], /, *args: object) -> T:
        """Call ``make``, which makes a grammar, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._maker, make, *args)

    async def check(self, source: str | None, field: str) -> None:
        """Refuse a grammar that cannot be used.

        Args:
            source: The grammar; None: there is none.
            field: What the caller calls what it is made of.

        Raises:
            InvalidInput: It takes too long, too much memory, or does not compile.
            ApiError: 503, the process for it does not start.
        """
        if source is None:
            return
        try:
            if self._trial is not None and self._trial.knows(source):
                reason = self._trial.check(source)
            else:
                reason = await asyncio.get_running_loop().run_in_executor(self._trier, self._try, source)
        except GrammarError as error:
            raise unavailable(f"Constrained output is not available: {error}.", retry_after_s=5) from error
        if reason is not None:
            raise InvalidInput(f"what the answer is to follow {reason}", field=field, code="unsupported_schema")

    def close(self) -> None:
        """End the process and the threads."""
        self._maker.shutdown(wait=False, cancel_futures=True)
        self._trier.shutdown(wait=False, cancel_futures=True)
        if self._trial is not None:
            self._trial.close()

    def _try(self, source: str) -> str | None:
        if self._trial is None:
            self._trial = GrammarCheck(self._tokenizer)
        return self._trial.check(source)
