"""What a round saw, request by request, as parallel arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNKNOWN = -1  # a count that the server did not tell


@dataclass(frozen=True, slots=True)
class Samples:
    """One row a request, in the order in which they were due. Moments are seconds since the round began.

    Attributes:
        session: Number of the session, int64.
        turn: Number of the turn in its session, int64.
        due: When the request was to be sent by the schedule, whether or not the generator managed to. Latencies count
            from here.
        sent: When the generator began to send it, by writing it to a connection or opening one; NaN if it never did.
        end: When its stream ended, or it failed; NaN if the round was over before.
        planned_prompt: Prompt tokens that were sent, counted by the generator; ``UNKNOWN`` where the server's template
            or the text of an answer decides.
        planned_output: ``max_tokens``.
        prompt_tokens: As the server's ``usage`` has it, or ``UNKNOWN``.
        output_tokens: As the server's ``usage`` has it, or the number of its token ids, or ``UNKNOWN``; never the
            number of chunks.
        cached_tokens: Prompt tokens from the prefix cache, or ``UNKNOWN``.
        queue: Seconds in the server's queue as its ``timings`` have it, or NaN.
        error: What went wrong, as a short kind such as ``http 429``, ``timeout``, ``disconnected``; empty if nothing.
        event_times: Moment of every stream event that carried output (text or token ids), all requests one after the
            other.
        event_offsets: Row i owns ``event_times[event_offsets[i]:event_offsets[i + 1]]``; one longer than the rows.
    """

    session: Ints
    turn: Ints
    due: Floats
    sent: Floats
    end: Floats
    planned_prompt: Ints
    planned_output: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    queue: Floats
    error: tuple[str, ...]
    event_times: Floats
    event_offsets: Ints

    def __len__(self) -> int:
        return len(self.due)

    @property
    def first(self) -> Floats:
        """Moment of each request's first output event; NaN where there was none."""
        return self._at(self.event_offsets[:-1])

    @property
    def last(self) -> Floats:
        """Moment of each request's last output event; NaN where there was none."""
        return self._at(self.event_offsets[1:] - 1)

    @property
    def events(self) -> Ints:
        """Number of output events of each request."""
        return np.diff(self.event_offsets)

    @property
    def succeeded(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered to the end."""
        return np.array([kind == "" for kind in self.error], dtype=bool) & ~np.isnan(self.end)

    def _at(self, index: Ints) -> Floats:
        if not len(self.event_times):
            return np.full(len(self), np.nan)
        found = self.event_times[np.clip(index, 0, len(self.event_times) - 1)]
        return np.where(self.events > 0, found, np.nan)


@dataclass(frozen=True, slots=True)
class GeneratorLog:
    """What the generator saw of itself in a round.

    Attributes:
        wall: Seconds from the first due moment to the end of the last stream.
        cpu: Seconds of processor time that its process took meanwhile, user and system.
        loop_lag: How late timers of its event loop fired, seconds, sampled all along.
        connections: Connections opened.
        resent: Requests sent a second time, because a kept-alive connection was found closed before any answer.
    """

    wall: float
    cpu: float
    loop_lag: Floats
    connections: int
    resent: int
