"""The Llama line: Llama 2 and 3, SmolLM2, Mistral without a window, Qwen2, Qwen2.5, Qwen3.

One forward pass serves a ragged batch: tokens of many sequences side by side in one dimension T, each with its
position. Only attention needs to know which token belongs to which sequence, so it is the executor's (``state.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.llama import LlamaConfig
from headrace.models.families.layers import (
    Embedding,
    GatedMLP,
    Linear,
    RMSNorm,
    rope_frequencies,
    rope_tables,
    rotate,
)
from headrace.models.families.model import FamilyModel
from headrace.models.families.state import State


class Attention(nn.Module):
    """Grouped-query attention: projections, optional per-head norms, rope; ``State`` does the rest."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        mixed = state.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each normalized before and added to its input."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, state)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Model(FamilyModel):
    """A decoder of the Llama line (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783).

    Attributes:
        config: Its dimensions.
        frequencies: ``float32 [head_dim / 2]``, rope angles a position; not part of the checkpoint.
    """

    frequencies: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = None if config.tied else Linear(config.hidden_size, config.vocab_size, bias=False)

    def make_tables(self, device: torch.device | str) -> None:
        """Compute what follows from the config and is in no checkpoint."""
        frequencies = rope_frequencies(self.config.rope, self.config.head_dim).to(device)
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
