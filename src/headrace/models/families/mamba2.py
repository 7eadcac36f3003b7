"""Mamba-2: recurrences instead of attention, and no feed-forward layers.

Positions are of no use here: the order of tokens is in the recurrences alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.mamba2 import Mamba2Config
from headrace.models.families.layers import Embedding, Linear, RMSNorm
from headrace.models.families.model import FamilyModel
from headrace.models.families.ssm import WIDE, Mixer
from headrace.models.families.state import State


class Block(nn.Module):
    """One layer: a mixer, normalized before and added to its input."""

    def __init__(self, config: Mamba2Config, layer: int) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer = Mixer(config.mixer, layer)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``, in the dtype of ``x``; the mixer computes in the model's."""
        mixed: Tensor = x + self.mixer(self.norm(x.to(self.norm.weight.dtype)), state)
        return mixed


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm_f = RMSNorm(config.hidden_size, config.norm_eps)


class Model(FamilyModel):
    """A Mamba-2 language model (Dao and Gu, arXiv 2405.21060).

    Attributes:
        config: Its dimensions.
    """

    wide = WIDE
    embedding_name = "backbone.embeddings.weight"

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        self.backbone = Trunk(config)
        self.lm_head = None if config.tied else Linear(config.hidden_size, config.vocab_size, bias=False)

    def make_tables(self, device: torch.device | str) -> None:
        """There are none."""

    def hidden(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """See ``FamilyModel``."""
        embedded: Tensor = self.backbone.embeddings(tokens)
        x = embedded.float() if self.config.wide_residual else embedded
        for block in self.backbone.layers:
            x = block(x, state)
        normalized: Tensor = self.backbone.norm_f(x)
        return normalized.to(embedded.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``FamilyModel``."""
        head = self.backbone.embeddings if self.lm_head is None else self.lm_head
        return nn.functional.linear(hidden, head.weight).float()
