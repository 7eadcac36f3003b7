"""The Llama line: Llama 2 and 3, SmolLM2, Mistral without a window, Qwen2, Qwen2.5, Qwen3.

One forward pass serves a ragged batch: tokens of many sequences side by side in one dimension T, each with its
position. Only attention needs to know which token belongs to which sequence, so it is the executor's (``state.py``).
"""

from __future__ import annotations

from torch import Tensor, nn

from headrace.models.configs.llama import LlamaConfig
from headrace.models.families.decoder import Block, Decoder
from headrace.models.families.layers import (
    GatedMLP,
    Linear,
    RMSNorm,
    rotate,
)
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


def _block(config: LlamaConfig, layer: int) -> Block:
    norms = RMSNorm(config.hidden_size, config.norm_eps), RMSNorm(config.hidden_size, config.norm_eps)
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)
    return Block(Attention(config, layer), mlp, norms)


class Model(Decoder):
    """A decoder of the Llama line (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783)."""

    def __init__(self, config: LlamaConfig) -> None:
        blocks = (_block(config, layer) for layer in range(config.layers))
        super().__init__(config, blocks, RMSNorm(config.hidden_size, config.norm_eps), config.head_dim)
