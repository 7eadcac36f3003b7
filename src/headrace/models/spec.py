"""What the rest of Headrace knows of a model: its dimensions and the state it keeps. No tensors, no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

StateKind = Literal["full", "window", "latent", "recurrent"]


@dataclass(frozen=True, slots=True)
class StatePart:
    """One array that a layer keeps: of each token, or of the whole sequence where the state is recurrent.

    Attributes:
        name: ``key``, ``value``, ``latent``, …
        shape: Its dimensions.
        wide: Kept in float32, whatever the executor computes in.
    """

    name: str
    shape: tuple[int, ...]
    wide: bool = False

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StateGroup:
    """One kind of state that a sequence keeps between steps, of all layers that keep it.

    Attributes:
        kind: ``full``: attention over all tokens keeps a key and a value of each. ``window``: attention over the last
            tokens needs those of the last ``window`` alone. ``latent``: one compressed vector a token stands for the
            keys and values of all heads (MLA). ``recurrent``: a state of fixed size stands for all tokens so far.
        layers: Numbers of the layers that keep it, in order.
        parts: What each of them keeps.
        window: Tokens that a token of a ``window`` group sees, itself included; else 0.
    """

    kind: StateKind
    layers: tuple[int, ...]
    parts: tuple[StatePart, ...]
    window: int = 0

    @property
    def by_token(self) -> bool:
        """Whether each token has its own share, in pages; else the whole sequence has one."""
        return self.kind != "recurrent"

    def item_bytes(self, element_bytes: int) -> int:
        """Bytes of a token, or of a recurrent state, over all layers.

        Args:
            element_bytes: Of an element that is not wide.
        """
        return len(self.layers) * sum(part.elements * (4 if part.wide else element_bytes) for part in self.parts)


def attention_group(
    kind: Literal["full", "window"], layers: Iterable[int], heads: int, head_dim: int, window: int = 0
) -> StateGroup:
    """The group of layers whose heads keep keys and values of one size."""
    shape = (heads, head_dim)
    return StateGroup(kind, tuple(layers), (StatePart("key", shape), StatePart("value", shape)), window)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as scheduler, memory and API see it.

    Attributes:
        name: The name a client asks for.
        family: The family module that computes it, such as ``llama``.
        vocab_size: Rows of the output layer; token ids are below it.
        hidden_size: Elements of a token's hidden vector.
        context_length: Most tokens (prompt and output) of a sequence.
        eos_token_ids: Tokens that end a sequence unless ``ignore_eos``.
        state_groups: What a sequence keeps between steps.
        parameters: Number of weights.
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    state_groups: tuple[StateGroup, ...]
    parameters: int
