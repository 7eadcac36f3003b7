"""``FamilyModel``: what every family's ``Model`` offers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.models.families.state import State


class FamilyModel(nn.Module):
    """A family's forward pass; this class itself computes nothing.

    Parameters carry the names of the Hugging Face checkpoint, which makes loading a copy by name.

    Attributes:
        config: Its dimensions.
        wide: Ends of the names of parameters that stay in float32, whatever the model is loaded as.
        embedding_name: The embedding matrix, which is the output layer too in a tied model.
    """

    config: Any
    wide: tuple[str, ...] = ()
    embedding_name = "model.embed_tokens.weight"

    def spare(self, name: str) -> bool:
        """Whether a checkpoint may hold this tensor although the model has no use for it."""
        return False

    def make_tables(self, device: torch.device | str) -> None:
        """Compute what follows from the config and is in no checkpoint: buffers of float32."""
        raise NotImplementedError

    def hidden(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """The normalized hidden vectors that ``logits`` takes.

        Args:
            tokens: ``int64 [T]``, of any number of sequences.
            positions: ``int64 [T]``, each token's position in its own sequence.
            state: What the sequences keep.

        Returns:
            ``[T, hidden]`` in the model's dtype.
        """
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """The next token's logits.

        Args:
            hidden: ``[R, hidden]``, the rows of ``hidden``'s result that matter.

        Returns:
            ``float32 [R, vocab]``.
        """
        raise NotImplementedError
