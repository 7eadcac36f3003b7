"""Choosing the reader of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CheckpointError
from headrace.models.checkpoint import SAFETENSORS_INDEX, Checkpoint
from headrace.models.gguf_checkpoint import GGUFCheckpoint
from headrace.models.safetensors_folder import SafetensorsFolder

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a ``.gguf`` file, or a folder of ``*.safetensors`` with a ``config.json``.

    A folder without safetensors that holds exactly one ``.gguf`` file opens that file.

    Raises:
        CheckpointError: Nothing readable is there; pickled checkpoints are refused.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise CheckpointError("there is no such file or folder", file=path)
    if path.suffix == ".safetensors":
        raise CheckpointError("name the folder, which also holds config.json and the tokenizer", file=path)
    if path.suffix in PICKLED:
        raise _pickled(path)
    return GGUFCheckpoint(path)


def _open_folder(path: Path) -> Checkpoint:
    files = sorted(p.name for p in path.iterdir() if p.is_file())
    if SAFETENSORS_INDEX in files or any(name.endswith(".safetensors") for name in files):
        return SafetensorsFolder(path)
    ggufs = [name for name in files if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return GGUFCheckpoint(path / ggufs[0])
    if ggufs:
        raise CheckpointError(f"the folder holds several GGUF files; name one of {', '.join(ggufs)}", file=path)
    pickled = [name for name in files if name.endswith(PICKLED)]
    if pickled:
        raise _pickled(path / pickled[0])
    raise CheckpointError("the folder holds neither *.safetensors nor a *.gguf file", file=path)


def _pickled(path: Path) -> CheckpointError:
    return CheckpointError(
        "pickled checkpoints are refused: unpickling runs whatever code the file carries. Use the model's "
        "safetensors or GGUF version, or convert it in a place where running that code does no harm",
        file=path,
    )
