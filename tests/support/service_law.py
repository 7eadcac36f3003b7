"""When a scripted server says what: a law that a test can replay, so that the truth of a measurement is known.

Time stands still in a stall: what was to happen in it, and all that follows, happens later by its length.
"""

import heapq
from dataclasses import asdict, dataclass, field


@dataclass
class Script:
    """How the server behaves.

    Attributes:
        ttft: Seconds from the start of a request's service to its first token.
        gap: Seconds between its tokens.
        slots: Requests served at once; the others wait in order of arrival. None: no limit.
        tokens_per_event: Tokens in one event of the stream.
        stalls: Pairs (begin, length), seconds since the first request arrived.
        faults: Kind to (every, after): each so many-th request fails in this way, after so many tokens.
        overhead: Tokens that the server adds to a prompt in text.
        cached: Tokens of each prompt that it says to have found in its cache.
        usage: Whether it tells its token counts.
        ids: Whether it takes prompts as token ids.
        returns_ids: Whether it tells the ids of its answers' tokens where asked.
        refuses: Names of fields that it answers with 400.
        tokenizes: Whether it has /tokenize.
        close_after: Close a connection after so many answers, without saying so; 0: never.
        drop_reused: Close a connection when a request comes on it after an answer.
        record: Whether the log holds the prompts.
    """

    ttft: float = 0.05
    gap: float = 0.02
    slots: int | None = None
    tokens_per_event: int = 1
    stalls: list = field(default_factory=list)
    faults: dict = field(default_factory=dict)
    overhead: int = 0
    cached: int = 0
    usage: bool = True
    ids: bool = True
    returns_ids: bool = False
    refuses: list = field(default_factory=list)
    tokenizes: bool = True
    close_after: int = 0
    drop_reused: bool = False
    record: bool = False

    def fault(self, i):
        """Kind and moment, in tokens, of what goes wrong with request i, or (None, 0)."""
        for kind, (every, after) in self.faults.items():
            if i % every == every - 1:
                return kind, after
        return None, 0

    as_dict = asdict


class Law:
    """Moments of a script's service, request by request in order of arrival.

    Args:
        script: How it behaves.
    """

    def __init__(self, script):
        self.script = script
        self.free = [0.0] * (script.slots or 0)

    def admit(self, arrival, tokens):
        """Seconds since the first arrival: start of service, and moment of each event."""
        script = self.script
        begin = self.working(arrival)
        if script.slots:
            begin = max(begin, heapq.heappop(self.free))
        last_tokens = [min(i + script.tokens_per_event, tokens) - 1 for i in range(0, tokens, script.tokens_per_event)]
        moments = [begin + script.ttft + script.gap * i for i in last_tokens]
        if script.slots:
            heapq.heappush(self.free, moments[-1])
        return self.wall(begin), [self.wall(m) for m in moments]

    def working(self, wall):
        """Seconds of work that were possible until a moment."""
        return wall - sum(min(max(wall - begin, 0), length) for begin, length in self.script.stalls)

    def wall(self, working):
        """The moment at which so many seconds of work are done."""
        for begin, length in sorted(self.script.stalls):
            if working >= begin:
                working += length
        return working


def replay(script, due, tokens):
    """What an ideal client sees of requests sent at ``due``: (start of service, moments of events) of each."""
    law = Law(script)
    return [law.admit(moment, n) for moment, n in zip(due, tokens, strict=True)]
