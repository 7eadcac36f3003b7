"""From turns to request bodies: draws the tokens, writes the JSON, carries a conversation on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.bench.load.exchange import Exchange
from headrace.bench.load.target import CHAT_HEAD, Server
from headrace.bench.results.samples import UNKNOWN
from headrace.bench.workload.prompts import Ints, Lexicon, draw_prompt, ids, text
from headrace.bench.workload.records import Segment, Session, Turn

NOTHING: Ints = np.zeros(0, np.int64)


class Prepared(NamedTuple):
    """A request that is ready to be sent.

    Attributes:
        body: JSON.
        planned_prompt: Tokens of its prompt, or ``UNKNOWN`` where the server's template or text of an answer decides.
        planned_output: Tokens asked for.
    """

    body: bytes
    planned_prompt: int
    planned_output: int


class Composer:
    """Writes the requests of a round.

    Attributes:
        server: What the server takes.
        name: Begins the id of each request: no other round of any run has it.

    Args:
        server: What the server takes.
        lexicon: Words of one token each.
        seed: Of all draws.
        salt: Another salt gives other tokens to the same workload: no round finds an earlier one's prompts cached.
    """

    def __init__(self, server: Server, lexicon: Lexicon, seed: int, salt: str) -> None:
        self.server = server
        self.name = f"bench-{hashlib.blake2b(salt.encode(), digest_size=6).hexdigest()}"
        self._lexicon = lexicon
        self._seed = seed
        self._salt = salt
        self._constant: dict[str, Any] = {
            "model": server.target.model,
            "stream": True,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if server.ignores_eos else {}),
            **({"timings": True} if server.tells_timings else {}),
            **server.extra_body,
        }

    def conversation(self, number: int, session: Session) -> Conversation:
        """A session, before its first turn."""
        return Conversation(self, number, session)

    def ids(self, segments: tuple[Segment, ...]) -> Ints:
        """Token ids of segments, int64."""
        return ids(self._lexicon, self._words(segments))

    def text(self, segments: tuple[Segment, ...], *, begins: bool) -> str:
        """Text of segments, at the beginning of a prompt or behind another text."""
        return text(self._lexicon, self._words(segments), begins=begins)

    def _words(self, segments: tuple[Segment, ...]) -> Ints:
        return draw_prompt(self._lexicon, self._seed, self._salt, segments)

    def body(self, prompt: Mapping[str, Any], turn: Turn, *, wants_ids: bool) -> bytes:
        """The request's JSON."""
        extra = {"return_token_ids": True} if wants_ids else {}
        return msgspec.json.encode({**self._constant, **prompt, "max_tokens": turn.output_tokens, **extra})


class Conversation:
    """A session under way: what has been said, and how the next turn is written.

    Where the server tells the token ids of its answers (or takes text), a turn that continues repeats the very answer;
    where it takes ids and tells none, drawn words of the planned length stand in for it.

    Attributes:
        number: Of the session.
        turn: The turn that was asked last; -1 before the first.
    """

    __slots__ = ("_composer", "_count", "_ids", "_messages", "_session", "_text", "number", "turn")

    def __init__(self, composer: Composer, number: int, session: Session) -> None:
        self._composer = composer
        self.number = number
        self._session = session
        self.turn = -1
        self._count = 0
        self._ids = NOTHING
        self._text = ""
        self._messages: list[dict[str, str]] = []

    @property
    def upcoming(self) -> Turn | None:
        """The turn that comes next, if any."""
        following = self.turn + 1
        return self._session.turns[following] if following < len(self._session.turns) else None

    @property
    def keeps_answer(self) -> bool:
        """Whether the turn now asked needs its answer kept, for the next one repeats it."""
        upcoming = self.upcoming
        return upcoming is not None and upcoming.continues

    def ask(self) -> Prepared:
        """Write the next turn."""
        self.turn += 1
        turn = self._session.turns[self.turn]
        server = self._composer.server
        if not turn.continues:
            self._count, self._ids, self._text, self._messages = 0, NOTHING, "", []
        self._count = UNKNOWN if self._count == UNKNOWN else self._count + turn.tokens
        planned = UNKNOWN if self._count == UNKNOWN else self._count + server.overhead
        wants_ids = server.returns_ids and (self.keeps_answer or server.counts_by_ids)
        body = self._composer.body(self._prompt(turn), turn, wants_ids=wants_ids)
        if not self.keeps_answer:  # nothing repeats this prompt
            self._ids, self._text, self._messages = NOTHING, "", []
        return Prepared(body, planned, turn.output_tokens)

    def _prompt(self, turn: Turn) -> dict[str, Any]:
        target = self._composer.server.target
        if target.api == "chat":
            content = CHAT_HEAD + self._composer.text(turn.segments, begins=False)
            self._messages.append({"role": "user", "content": content})
            return {"messages": self._messages}
        if target.prompts == "text":
            self._text += self._composer.text(turn.segments, begins=not self._text)
            return {"prompt": self._text}
        self._ids = np.concatenate([self._ids, self._composer.ids(turn.segments)])
        return {"prompt": self._ids.tolist()}

    def answered(self, exchange: Exchange) -> None:
        """Take the answer into the history."""
        if not self.keeps_answer:
            return
        target = self._composer.server.target
        if target.api == "completions" and target.prompts == "tokens":
            told = exchange.token_ids
            stand_in = Segment(f"answer {self.number} {self.turn}", exchange.planned_output)
            answer = np.array(told, np.int64) if told else self._composer.ids((stand_in,))
            self._ids = np.concatenate([self._ids, answer])
            self._count += len(answer)
            return
        said = "".join(exchange.texts)
        self._text += said
        self._messages.append({"role": "assistant", "content": said})
        self._count = UNKNOWN
