import json
from pathlib import Path

from headrace.models.cache import cache_folder
from headrace.models.hub import CATALOGUE


def test_models_lists_what_is_known(run):
    (row,) = json.loads(run("models", "--json").stdout)["models"]
    entry = CATALOGUE["smollm2-135m"]
    assert row == {
        "name": "smollm2-135m",
        "format": "gguf",
        "bytes": entry.size,
        "licence": "Apache-2.0",
        "path": None,
    }
    assert "headrace pull" in run("models").stdout


def test_models_lists_what_is_here(run):
    entry = CATALOGUE["smollm2-135m"]
    file = cache_folder() / "models" / Path(entry.member).name
    file.parent.mkdir(parents=True)
    with file.open("wb") as sink:
        sink.truncate(entry.size)  # sparse
    (row,) = json.loads(run("models", "--json").stdout)["models"]
    assert row["path"] == str(file)
    table = run("models").stdout
    assert "smollm2-135m" in table
    assert "98.4 MB" in table
    assert run("pull", "smollm2-135m").stdout == f"{file}\n"


def test_pull_prints_the_path(run, tiny):
    assert run("pull", tiny).stdout == f"{tiny}\n"
    assert json.loads(run("pull", tiny, "--json").stdout) == {"model": tiny, "path": tiny}


def test_pull_of_an_unknown_name(run):
    result = run("pull", "smollm2-13b")
    assert result.exit_code == 1
    assert "Did you mean 'smollm2-135m'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
