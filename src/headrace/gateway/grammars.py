"""``Grammars``: what requests ask of their answers is tried in a process of its own before it reaches the engine."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from headrace.api.errors import unavailable
from headrace.errors import InvalidInput
from headrace.text.grammar import GrammarCheck, GrammarError
from headrace.text.tokenizer import Tokenizer


class Grammars:
    """Tries grammars for one model.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._trial: GrammarCheck | None = None
        # One thread, for one grammar is tried at a time: those who wait take none from what others use threads for, and
        # one whose client goes away while it waits is not tried.
        self._thread = ThreadPoolExecutor(1, "try-grammars")

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
            known = self._trial.known(source) if self._trial is not None else None
            if known is not None:
                reason = known.reason
            else:
                reason = await asyncio.get_running_loop().run_in_executor(self._thread, self._try, source)
        except GrammarError as error:
            raise unavailable(f"Constrained output is not available: {error}.", retry_after_s=5) from error
        if reason is not None:
            raise InvalidInput(f"what the answer is to follow {reason}", field=field, code="unsupported_schema")

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._trial is not None:
            self._trial.close()

    def _try(self, source: str) -> str | None:
        if self._trial is None:
            self._trial = GrammarCheck(self._tokenizer)
        return self._trial.check(source)
