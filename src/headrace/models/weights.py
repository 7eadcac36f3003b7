"""Copies a checkpoint's weights into a module, and accounts for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from headrace.errors import CheckpointError
from headrace.models.checkpoint import Checkpoint

# Called with (weights copied so far, weights in all).
Progress = Callable[[int, int], None]

# Old converters stored this table, which follows from the config.
_DERIVED = (".rotary_emb.inv_freq",)


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
