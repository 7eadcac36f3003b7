"""A checkpoint to a model in PyTorch: its family's module, with every weight of the file accounted for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

from headrace.errors import CheckpointError
from headrace.models.checkpoint import Checkpoint
from headrace.models.families.model import FamilyModel
from headrace.models.registry import family_of

DTYPES = (torch.float32, torch.bfloat16)

# Called with (weights copied so far, weights in all).
Progress = Callable[[int, int], None]

# Old converters stored this table, which follows from the config.
_DERIVED = (".rotary_emb.inv_freq",)


def skeleton(checkpoint: Checkpoint) -> FamilyModel:
    """The model without its weights: parameters on the meta device, buffers in memory. To look at, not to run.

    Raises:
        CheckpointError: The architecture is unknown, or the config is unusable.
    """
    model = _built(checkpoint, torch.float32)
    model.make_tables("cpu")
    return model


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> FamilyModel:
    """Build the model and copy its weights, one tensor at a time.

    Args:
        checkpoint: An open checkpoint of a known family.
        dtype: ``torch.float32`` or ``torch.bfloat16``.
        progress: Called after every tensor with (weights copied, weights in all).
        device: Where the weights go.

    Raises:
        CheckpointError: The architecture is unknown, the config is unusable, or a tensor is missing, left over
            or of another shape than the config says. Found before any weight memory is taken.
        ValueError: ``dtype`` is neither of the two.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, not {dtype}")
    model = _built(checkpoint, dtype)
    spare = {name for name in checkpoint.names() if model.spare(name)}
    fit(model, checkpoint, spare | {"lm_head.weight"} if model.config.tied else spare)
    if model.config.tied and "lm_head.weight" in checkpoint.names():
        _check_tied(checkpoint, model.embedding_name)
    model = model.to_empty(device=device)
    model.make_tables(device)
    fill(model, checkpoint, progress)
    return model


def _built(checkpoint: Checkpoint, dtype: torch.dtype) -> FamilyModel:
    family = family_of(checkpoint.config, checkpoint.path)
    config = family.parse(checkpoint.config, checkpoint.path)
    module = importlib.import_module(f"headrace.models.families.{family.name}")
    with torch.device("meta"):
        model: FamilyModel = module.Model(config).to(dtype).requires_grad_(requires_grad=False).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(model.wide):
                parameter.data = parameter.data.float()
    return model


def _check_tied(checkpoint: Checkpoint, embedding_name: str) -> None:
    """A tied model may repeat its embedding as output layer, but not bring another one."""
    head, embedding = checkpoint.read("lm_head.weight"), checkpoint.read(embedding_name)
    if not np.array_equal(head, embedding):
        raise CheckpointError(
            "the config ties the output layer to the embedding, and the two differ",
            file=checkpoint.path,
            tensor="lm_head.weight",
        )


def fit(module: nn.Module, checkpoint: Checkpoint, spare: Iterable[str] = ()) -> None:
    """Check that the checkpoint holds exactly the module's parameters, in their shapes.

    Args:
        module: May be on the meta device: only names and shapes are looked at.
        checkpoint: Where the weights are to come from.
        spare: Names that may be in the checkpoint without being in the module.

    Raises:
        CheckpointError: Names the first tensor that is missing, has another shape, or is left over.
    """
    wanted = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    there = set(checkpoint.names())
    for name, shape in wanted.items():
        if name not in there:
            raise CheckpointError("the model needs this tensor, and it is missing", file=checkpoint.path, tensor=name)
        found = checkpoint.shape(name)
        if found != shape:
            raise CheckpointError(
                f"shape {list(found)} does not fit the config, which asks for {list(shape)}",
                file=checkpoint.path,
                tensor=name,
            )
    for name in sorted(there - wanted.keys() - set(spare)):
        if not name.endswith(_DERIVED):
            raise CheckpointError("the model has no place for this tensor", file=checkpoint.path, tensor=name)


def fill(module: nn.Module, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
    """Copy every parameter, one tensor at a time, rounding to the parameter's dtype.

    At most one tensor is held in float32 besides the module itself.
    """
    total = sum(parameter.numel() for parameter in module.parameters())
    done = 0
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(checkpoint.read(name)))
        done += parameter.numel()
        if progress is not None:
            progress(done, total)
