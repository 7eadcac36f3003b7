"""The application: its verbs by name, loaded when used, and the exit status of what they raise."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli.output import plain
from headrace.errors import HeadraceError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives.

    Attributes:
        module: The module, imported only when the verb is used.
        attribute: In it, the function, or a ``Typer`` with verbs of its own.
        help: One line, the first of its documentation.
    """

    module: str
    attribute: str
    help: str


VERBS = {
    "serve": Verb(
        "headrace.cli.serve",
        "serve",
        "Serve a model over HTTP, with OpenAI's API.",
    ),
    "chat": Verb("headrace.cli.chat", "chat", "Talk to a running server."),
    "generate": Verb("headrace.cli.generate", "generate", "Complete a prompt in this process, without a server."),
    "pull": Verb("headrace.cli.pull", "pull", "Fetch a model into this machine's cache and print its path."),
    "models": Verb("headrace.cli.models", "models", "List the models that are here, and those known by name."),
    "tune": Verb("headrace.cli.tune", "tune", "Search for the fastest way to run a model on this machine."),
    "bench": Verb("headrace.cli.bench", "app", "Measure servers, the engine, and the limits of this machine."),
}


class LazyGroup(TyperGroup):
    """Loads a verb's module only when the verb is used, so that help and completion come at once."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb, and load it in place of the stub that stood for it in the list."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load_verb(name) if name in VERBS else command), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; what it raises on purpose becomes a line on standard error and an exit status."""
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            sys.stderr.write(f"error: {describe(error)}\n")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def load_verb(name: str) -> Any:
    """The command of a verb."""
    verb = VERBS[name]
    target = getattr(importlib.import_module(verb.module), verb.attribute)
    if not isinstance(target, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(target)
        target = alone
    return typer.main.get_command(target)


def describe(error: HeadraceError) -> str:
    """An error in one line."""
    return plain(" ".join(str(error).split()))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    # Plain help: it starts faster, reads well in a pipe, and brackets in it mean nothing.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Headrace, an LLM inference stack: serve open-weight models, talk to them, measure them."""


def _stub() -> None:
    """Stands for a verb in the list; ``LazyGroup`` loads the real one."""


for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.help)(_stub)
