"""What the rest of Headrace knows of a model: its dimensions and the state it keeps. No tensors, no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StateGroup:
    """One kind of state that a sequence keeps between steps.

    Attributes:
        kind: ``full`` attention keeps a key and a value of every token.
        layers: Layers that keep it.
        heads: Key/value heads a layer.
        key_dim: Elements of one head's key.
        value_dim: Elements of one head's value.
    """

    kind: Literal["full"]
    layers: int
    heads: int
    key_dim: int
    value_dim: int

    def elements_per_token(self) -> int:
        """Elements that one token keeps, over all layers."""
        return self.layers * self.heads * (self.key_dim + self.value_dim)


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
