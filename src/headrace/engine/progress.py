"""``Progress``: the samples of the requests that run, and what steps, constraints and deadlines make of them."""

from __future__ import annotations

import time

import msgspec

from headrace.engine.constraint import TokenConstraint
from headrace.engine.guidance import Guidance, Guide
from headrace.engine.messages import Finish, PositionLogprobs, TokenDelta
from headrace.engine.outcome import finish_of, position_logprobs, timeline_of
from headrace.engine.plan import Planned
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Drawn, Sequence
from headrace.engine.totals import Totals
from headrace.runtime.batch import FloatArray, StepOutput


class Progress:
    """Moves samples on, each up to its end, and tells of it in deltas.

    Args:
        scheduler: Is told of those that come, go on and end.
        guide: Asks their constraints.
        totals: Counts what comes out.
    """

    def __init__(self, scheduler: Scheduler, guide: Guide, totals: Totals) -> None:
        self._scheduler, self._guide, self._totals = scheduler, guide, totals
        self._requests: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        """How many requests run."""
        return len(self._requests)

    def __contains__(self, request: int) -> bool:
        """Whether a request runs."""
        return request in self._requests

    # --- coming and going ---------------------------------------------------------------------------------------

    def enter(self, sequences: list[Sequence]) -> None:
        """Queue the samples of a request."""
        self._requests[sequences[0].request] = sequences
        self._guide.preparing += [s for s in sequences if s.preparing]
        for sequence in sequences:
            self._scheduler.add(sequence)

    def abort(self, request: int) -> None:
        """Stop a request and free what it holds; an unknown one is ignored (it may just have ended)."""
        sequences = self._requests.pop(request, [])
        for sequence in sequences:
            if not sequence.finished:
                self._remove(sequence)
        self._totals.aborted += bool(sequences)

    def refuse_late(self, now: float) -> list[TokenDelta]:
        """End those that have waited beyond their deadline."""
        return [self._end(sequence, [], None, Finish("late")) for sequence in self._scheduler.late(now)]

    def fail(self, sequence: Sequence, message: str) -> TokenDelta:
        """End a sample whose batch failed because of it."""
        return self._end(sequence, [], None, Finish("error", message=message), sound=False)

    def check(self) -> None:
        """Assert that no sample is lost."""
        everyone = self._scheduler.roster.everyone()
        live = {id(s) for group in self._requests.values() for s in group if not s.finished}
        assert live == {id(s) for s in everyone}, "a sequence is lost"
        self._guide.check(everyone)

    # --- going on -----------------------------------------------------------------------------------------------

    def take(self, planned: Planned, output: StepOutput, guidance: Guidance) -> list[TokenDelta]:
        """Bring sequences up to date with what a step computed for them; rows of stays that are over are void."""
        if planned.rows:
            self._scheduler.cost.learn(len(planned.batch.tokens), planned.pairs, output.seconds)
        tokens, accepted = output.tokens.tolist(), output.accepted.tolist()
        for row in guidance.foretold:
            accepted[row] = 0
        deltas = []
        for row, (sequence, stay) in enumerate(planned.rows):
            if sequence.stay != stay:
                continue
            if row in output.errors:
                deltas.append(self.fail(sequence, output.errors[row]))
                continue
            if output.prompt_logprobs[row]:
                sequence.prompt_logprobs += [position_logprobs(x) for x in output.prompt_logprobs[row]]
            if accepted[row]:
                deltas += self._advance(sequence, row, tokens[row], output)
            elif row in output.embeddings:
                deltas.append(self._embed(sequence, output.embeddings[row]))
        return deltas

    def go_on(self) -> list[TokenDelta]:
        """Let those go on who have waited for their constraints, or end."""
        deltas = []
        for sequence, finish in self._guide.ready():
            drawn, sequence.drawn = sequence.drawn, None
            if drawn is not None:
                deltas.append(self._tell(sequence, drawn, finish))
            elif (finish := finish or self._guide.begin(sequence)) is not None:
                deltas.append(self._end(sequence, [], None, finish))
        return deltas

    def _advance(self, sequence: Sequence, row: int, token: int, output: StepOutput) -> list[TokenDelta]:
        """Give a sequence the token that was drawn for it; nobody is told before its constraint has followed it."""
        first = sequence.first_token is None
        self._take(sequence, token)
        entry = output.logprobs[row]
        drawn = Drawn(token, None if entry is None else [position_logprobs(entry)], first)
        if sequence.constraint is None or not self._guide.sets_aside(sequence, sequence.constraint, token):
            return [self._tell(sequence, drawn)]
        sequence.drawn = drawn
        self._scheduler.clear(sequence)
        return []

    def _tell(self, sequence: Sequence, drawn: Drawn, finish: Finish | None = None) -> TokenDelta:
        """Have a constraint follow what was drawn, and tell of it; ``finish`` is how the sample ends if it is known."""
        tokens, constraint = [drawn.token], sequence.constraint
        if finish is None:
            if constraint is None:
                finish = finish_of(sequence, drawn.token)
            else:
                finish = self._follow(sequence, constraint, tokens)
        if finish is not None:
            return self._end(sequence, tokens, drawn.logprobs, finish, first=drawn.first)
        self._scheduler.clear(sequence)
        return self._delta(sequence, tokens, drawn.logprobs, None, first=drawn.first)

    def _follow(self, sequence: Sequence, constraint: TokenConstraint, tokens: list[int]) -> Finish | None:
        """Have a constraint follow a token that was drawn; to it are added those that need not be."""
        self._totals.masked_tokens += sequence.mask is not None
        finish = self._guide.follow(sequence, constraint, tokens)
        self._totals.forced_tokens += len(tokens) - 1
        self._totals.output_tokens += len(tokens) - 1
        return finish

    def _embed(self, sequence: Sequence, vector: FloatArray) -> TokenDelta:
        """End a sequence with the embedding that was made of it."""
        sequence.prefill_done = sequence.last_token = time.monotonic()
        self._count_prompt(sequence)
        delta = self._end(sequence, [], None, Finish("stop", timeline=timeline_of(sequence)), first=True)
        return msgspec.structs.replace(delta, embedding=vector.astype("<f4").tobytes())

    def _count_prompt(self, sequence: Sequence) -> None:
        if sequence.index == 0:
            self._totals.prompt_tokens += sequence.prompt_length
            self._totals.cached_tokens += sequence.cached_tokens or 0

    def _take(self, sequence: Sequence, token: int) -> None:
        now = time.monotonic()
        if sequence.first_token is None:
            sequence.prefill_done = sequence.first_token = now
            self._count_prompt(sequence)
        sequence.last_token = now
        sequence.tokens[sequence.known] = token
        sequence.known += 1
        sequence.drawing -= 1
        self._totals.output_tokens += 1

    def _end(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[PositionLogprobs] | None,
        finish: Finish,
        *,
        first: bool = False,
        sound: bool = True,
    ) -> TokenDelta:
        self._remove(sequence, sound=sound)
        if all(s.finished for s in self._requests[sequence.request]):
            del self._requests[sequence.request]
        return self._delta(sequence, tokens, logprobs, finish, first=first)

    def _remove(self, sequence: Sequence, *, sound: bool = True) -> None:
        self._scheduler.remove(sequence, sound=sound)
        if sequence.constraint is not None:
            sequence.constraint.close()

    def _delta(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[PositionLogprobs] | None,
        finish: Finish | None,
        *,
        first: bool,
    ) -> TokenDelta:
        wants_prompt = first and sequence.sampling.prompt_logprobs is not None
        return TokenDelta(
            request=sequence.request,
            index=sequence.index,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=sequence.prompt_logprobs if wants_prompt else None,
            cached_tokens=sequence.cached_tokens if first else None,
            finish=finish,
        )
