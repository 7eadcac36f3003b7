"""``headrace chat``: talk to a running server."""

from __future__ import annotations

import contextlib
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.cli.chat_client import ChatClient

HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def chat(
    message: Annotated[
        str | None, typer.Argument(help="Ask this and leave; left out: a conversation, or standard input if piped.")
    ] = None,
    url: Annotated[str, typer.Option(envvar="HEADRACE_URL", help="Address of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="HEADRACE_API_KEY", help="Key that the server wants.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="By default the server's first.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[float | None, typer.Option(help="By default the server's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal answers.")] = None,
) -> None:
    """Talk to a running server.

    Any OpenAI-compatible server will do. In a conversation /clear forgets what was said; Ctrl-C stops an answer,
    Ctrl-D leaves.
    """
    from headrace.cli.chat_client import ChatClient
    from headrace.cli.output import read_stdin

    options = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    one_shot = message if message is not None and message != "-" else None
    if one_shot is None and (message == "-" or not sys.stdin.isatty()):
        one_shot = read_stdin()
    with ChatClient(url, api_key) as client:
        names = client.models() if model is None else [model]
        if not names:
            raise HeadraceError(f"the server at {client.url} offers no model")
        talk = Conversation(client, {"model": names[0]} | {k: v for k, v in options.items() if v is not None}, system)
        if one_shot is None:
            _converse(talk)
        else:
            _show(talk.ask(one_shot))


@dataclass
class Conversation:
    """What was said, and how to go on.

    Attributes:
        client: The server.
        options: Fields of every request.
        system: The system message, if any.
        turns: User's and assistant's messages in turn.
    """

    client: ChatClient
    options: dict[str, Any]
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> Generator[str, None, None]:
        """Say something; yields the pieces of the answer.

        What was answered is remembered even if the iterator is closed early; a question that failed is forgotten.
        """
        question = {"role": "user", "content": text}
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        answer: list[str] = []
        try:
            with closing(self.client.stream({**self.options, "messages": [*first, *self.turns, question]})) as pieces:
                for piece in pieces:
                    answer.append(piece)
                    yield piece
        finally:
            if answer:
                self.turns += [question, {"role": "assistant", "content": "".join(answer)}]


def _show(pieces: Generator[str, None, None]) -> None:
    begun = False
    try:
        for piece in pieces:
            begun = True
            sys.stdout.write(piece)
            sys.stdout.flush()
    except HeadraceError:
        if begun:  # an answer that broke off ends its line too
            _end_line()
        raise
    except KeyboardInterrupt:
        _end_line()
        raise
    _end_line()


def _end_line() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()


def _converse(talk: Conversation) -> None:
    # Line editing and recall with the arrow keys, where the platform has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401

    sys.stderr.write(f"{talk.options['model']} at {talk.client.url}. {HELP}\n")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            talk.turns.clear()
            sys.stderr.write("The conversation is forgotten.\n")
        elif line.startswith("/"):
            sys.stderr.write(f"{HELP}\n")
        elif line:
            _answer(talk, line)


def _answer(talk: Conversation, line: str) -> None:
    pieces = talk.ask(line)
    try:
        _show(pieces)
    except KeyboardInterrupt:
        pass  # stops the answer, not the conversation
    except HeadraceError as error:
        sys.stderr.write(f"error: {error}\n")
    finally:
        pieces.close()
