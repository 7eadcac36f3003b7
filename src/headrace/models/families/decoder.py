"""``Decoder``: what families share that stack layers of attention and feed-forward on rotary positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.models.families.layers import Embedding, Linear, rope_frequencies, rope_tables
from headrace.models.families.model import FamilyModel
from headrace.models.families.state import State


class Block(nn.Module):
    """One layer: attention and feed-forward, each normalized before and added to its input.

    Args:
        attention: ``[T, hidden], cos, sin, state -> [T, hidden]``.
        mlp: ``[T, hidden] -> [T, hidden]``.
        norms: Before the one and the other.
    """

    def __init__(self, attention: nn.Module, mlp: nn.Module, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = attention
        self.mlp = mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, state)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: Any, blocks: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(blocks)
        self.norm = norm


class Decoder(FamilyModel):
    """A decoder whose layers all take the same rotary tables.

    Args:
        config: Its dimensions.
        blocks: Its layers, ``[T, hidden], cos, sin, state -> [T, hidden]`` each.
        norm: Of the last layer's result.
        rotated: Elements of a head that are rotated.

    Attributes:
        frequencies: ``float32 [rotated / 2]``, rope angles a position; not part of the checkpoint.
    """

    frequencies: Tensor

    def __init__(self, config: Any, blocks: Iterable[nn.Module], norm: nn.Module, rotated: int) -> None:
        super().__init__()
        self.config = config
        self.rotated = rotated
        self.model = Trunk(config, blocks, norm)
        self.lm_head = None if config.tied else Linear(config.hidden_size, config.vocab_size, bias=False)

    def make_tables(self, device: torch.device | str) -> None:
        """Compute what follows from the config and is in no checkpoint."""
        frequencies = rope_frequencies(self.config.rope, self.rotated).to(device)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def hidden(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """See ``FamilyModel``."""
        x: Tensor = self.model.embed_tokens(tokens)
        cos, sin = rope_tables(positions, self.frequencies, x.dtype, self.config.rope.attention_factor)
        for block in self.model.layers:
            x = block(x, cos, sin, state)
        normalized: Tensor = self.model.norm(x)
        return normalized

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``FamilyModel``."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return nn.functional.linear(hidden, head.weight).float()
