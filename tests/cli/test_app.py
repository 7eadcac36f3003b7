import inspect
import subprocess
import sys

import pytest
import typer

from headrace import __version__
from headrace.cli.app import VERBS, load_verb

OURS = [name for name in VERBS if name != "serve"]


def test_help_comes_without_anything_heavy():
    code = """
import sys
from headrace.cli import main
sys.argv = ["headrace", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {"torch", "transformers", "numpy", "httpx", "huggingface_hub", "tokenizers", "headrace.llm"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in VERBS:
        assert f"\n  {name} " in done.stdout


def test_the_entry_point_and_the_module_are_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"headrace {__version__}\n"


@pytest.mark.parametrize("name", OURS)
def test_the_listed_help_is_the_verb_s_own(name):
    assert load_verb(name).help.splitlines()[0] == VERBS[name].help


@pytest.mark.parametrize(
    "args", [[name] for name in OURS] + [["bench", "engine"], ["bench", "limits"], ["bench", "tiers"]]
)
def test_every_verb_explains_itself(run, args):
    result = run(*args, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert "--help" in result.stdout
    command = load_verb(args[0])
    for part in args[1:]:
        command = command.commands[part]
    assert inspect.cleandoc(command.help).splitlines()[0] in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["serv"], "serve"),
        (["generate", "a", "--nonsense"], "--nonsense"),
        (["generate", "a", "--max-tokens", "many"], "max-tokens"),
        (["generate", "a", "--dtype", "int3"], "float32"),
        (["generate", "a", "--system", "b"], "--chat"),
        (["pull"], "NAME"),
        (["bench", "engine", "m", "--repeat", "0"], "repeat"),
        (["bench", "cache"], "--cost"),
    ],
)
def test_wrong_usage_is_status_2(run, args, says):
    result = run(*args)
    assert result.exit_code == 2
    assert says.lower() in result.stderr.lower()
    assert not result.stdout


def test_no_verb_shows_the_help(run):
    result = run()
    assert "generate" in result.output


def test_an_interrupt_is_status_130(run, monkeypatch):
    import headrace.cli.models

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(headrace.cli.models, "_rows", interrupt)
    assert run("models").exit_code == 130


def test_verbs_are_functions_or_groups():
    for name in OURS:
        assert isinstance(load_verb(name), (typer.core.TyperCommand, typer.core.TyperGroup))
