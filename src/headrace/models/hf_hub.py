"""Models of the Hugging Face hub, through ``huggingface_hub`` and its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, InvalidInput

Progress = Callable[[str, int, int], None]

# Everything a checkpoint reader or tokenizer opens, and nothing that could run.
_SIDE_FILES = ("*.json", "*.jinja", "tokenizer.model")
_TIMEOUT = 10.0


def snapshot(repo: str, file: str | None = None, progress: Progress | None = None) -> Path:
    """Fetch a repository's safetensors and side files, or one GGUF file of it.

    What is in the hub's own cache is not fetched again, and serves when the hub cannot be reached.

    Args:
        repo: ``org/name``.
        file: A GGUF file's name in the repository.
        progress: Called with ("download", bytes so far, bytes in all).

    Returns:
        The snapshot's folder, or the GGUF file's path in it.

    Raises:
        InvalidInput: The repository holds several GGUF files and no safetensors, and ``file`` chooses none.
        HeadraceError: The hub cannot be reached, or has no such repository for this user.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        # Not `list_repo_files`: it retries for half a minute before it says that there is no network.
        listed = hub.HfApi().model_info(repo, timeout=_TIMEOUT).siblings or []
        patterns = choose_files(repo, [sibling.rfilename for sibling in listed], file)
        folder = Path(hub.snapshot_download(repo, allow_patterns=patterns, tqdm_class=_reporter(progress)))
    except errors.GatedRepoError:
        raise HeadraceError(
            f"{repo} asks for its licence to be accepted first: accept it on its page on the Hugging Face hub, then "
            "log in with `hf auth login`."
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise HeadraceError(
            f"the Hugging Face hub has no repository {repo!r}, or it is private. Check the spelling; for a private "
            "one log in with `hf auth login`."
        ) from None
    # The HTTP client differs between the hub package's versions; its own module knows which it is.
    except (OSError, vars(errors)["HTTPError"]) as error:
        return _offline(repo, file, error)
    return _pick(folder, patterns)


def choose_files(repo: str, files: list[str], file: str | None) -> list[str]:
    """Which files of a repository make a model: patterns or names, pickled weights never among them.

    Args:
        repo: For the errors.
        files: All names in the repository.
        file: The GGUF file that the user named, if one.

    Raises:
        InvalidInput: ``file`` is not there, or one must be named.
        HeadraceError: There are no weights that could be read.
    """
    ggufs = [name for name in files if name.endswith(".gguf")]
    if file is not None:
        if file not in ggufs:
            raise InvalidInput(
                f"{repo} holds no file {file!r}; its GGUF files are {_few(ggufs)}.",
                field="model",
                code="model_not_found",
            )
        return [file]
    if any(name.endswith(".safetensors") and "/" not in name for name in files):
        # Only the top folder: copies in other layouts live in subfolders and can double the download.
        side = [n for n in files if "/" not in n and any(Path(n).match(pattern) for pattern in _SIDE_FILES)]
        return [*side, *(n for n in files if "/" not in n and n.endswith(".safetensors"))]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise InvalidInput(
            f"{repo} holds several GGUF files; name one as {repo}/FILE: {_few(ggufs)}.",
            field="model",
            code="model_not_found",
        )
    raise HeadraceError(
        f"{repo} holds neither safetensors nor GGUF files. Pickled weights are not loaded, since they can run code."
    )


def cached_snapshots() -> Iterator[tuple[str, Path, int, str]]:
    """Models in the hub's cache: (name, path, bytes, ``gguf`` or ``safetensors``); the newest revision each."""
    import huggingface_hub as hub
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = hub.scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):
        return
    for repo in sorted(repos, key=lambda r: r.repo_id):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: revision.last_modified)
        names = {stored.file_path.relative_to(newest.snapshot_path).as_posix(): stored for stored in newest.files}
        if any(name.endswith(".safetensors") for name in names):
            yield repo.repo_id, newest.snapshot_path, newest.size_on_disk, "safetensors"
        for name, stored in sorted(names.items()):
            if name.endswith(".gguf"):
                yield f"{repo.repo_id}/{name}", stored.file_path, stored.size_on_disk, "gguf"


def _offline(repo: str, file: str | None, cause: Exception) -> Path:
    """The cached snapshot, when the hub cannot be asked."""
    import huggingface_hub as hub

    try:
        path = _pick(Path(hub.snapshot_download(repo, local_files_only=True)), [file] if file else [])
    except (OSError, ValueError):
        path = None
    if path is None or not path.exists():
        what = f"{repo}/{file}" if file else repo
        raise HeadraceError(
            f"the Hugging Face hub cannot be reached ({type(cause).__name__}), and {what} is not in its cache. Check "
            "the network or HF_ENDPOINT, or give the path of a model folder or .gguf file."
        ) from cause
    return path


def _pick(folder: Path, patterns: list[str]) -> Path:
    return folder / patterns[0] if len(patterns) == 1 and patterns[0].endswith(".gguf") else folder


def _few(names: list[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"


def _reporter(progress: Progress | None) -> Any:
    """A silent stand-in for the hub's progress bars that reports the one counting bytes."""
    from huggingface_hub.utils.tqdm import tqdm

    furthest = 0

    class Reporter(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]
            self.counts_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            nonlocal furthest
            self.n += n or 0
            # Two bars count the same bytes, as received and as written: the leading one is told.
            if progress is not None and self.counts_bytes and self.n > furthest:
                furthest = int(self.n)
                progress("download", furthest, int(self.total or 0))

    return Reporter
