"""Gemma 3, text only.

Most layers attend over a window of the last tokens, every sixth over all; the two kinds have rotary embeddings of
different wavelengths. Each half of a block is normalized before and after.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.gemma3 import Gemma3Config
from headrace.models.families.decoder import Decoder
from headrace.models.families.layers import GatedMLP, Linear, rope_frequencies, rope_tables, rotate
from headrace.models.families.state import State


class OffsetRMSNorm(nn.Module):
    """Root mean square normalization whose weight is kept less 1.

    Computed in float32, weight included, and rounded to the input's dtype last.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * (1.0 + self.weight.float())).to(x.dtype)


class GELUMLP(GatedMLP):
    """Feed-forward layer ``down(gelu(gate(x)) * up(x))`` (GEGLU), with the tanh approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        gated: Tensor = nn.functional.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x)
        down: Tensor = self.down_proj(gated)
        return down


class Attention(nn.Module):
    """Grouped-query attention: projections, norms of each query and key, rope; ``State`` does the rest."""

    def __init__(self, config: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.scale = config.query_scalar**-0.5
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm = OffsetRMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = OffsetRMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        mixed = state.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value, scale=self.scale)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each normalized before and after, and added to its input."""

    def __init__(self, config: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.input_layernorm = OffsetRMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = OffsetRMSNorm(config.hidden_size, config.norm_eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GELUMLP(config.hidden_size, config.intermediate_size, bias=False)
        self.post_feedforward_layernorm = OffsetRMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), cos, sin, state))
        mixed: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return mixed


class Model(Decoder):
    """A Gemma 3 decoder (Gemma Team, arXiv 2503.19786).

    Attributes:
        window_frequencies: What ``frequencies`` is in the full layers, in those with a window.
        embedding_scale: ``float32 []``, factor of the embeddings.
    """

    window_frequencies: Tensor
    embedding_scale: Tensor

    def __init__(self, config: Gemma3Config) -> None:
        blocks = (Block(config, layer) for layer in range(config.layers))
        super().__init__(config, blocks, OffsetRMSNorm(config.hidden_size, config.norm_eps), config.head_dim)

    def make_tables(self, device: torch.device | str) -> None:
        """Compute what follows from the config and is in no checkpoint."""
        config = self.config
        tables = {
            "frequencies": rope_frequencies(config.rope, config.head_dim),
            "window_frequencies": rope_frequencies(config.window_rope, config.head_dim),
            "embedding_scale": torch.tensor(config.hidden_size**0.5),
        }
        for name, table in tables.items():
            self.register_buffer(name, table.to(device), persistent=False)

    def hidden(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """See ``FamilyModel``."""
        embedded = self.model.embed_tokens(tokens)
        # The models were trained with the factor rounded to their dtype.
        x: Tensor = embedded * self.embedding_scale.to(embedded.dtype)
        rope, window_rope = self.config.rope, self.config.window_rope
        full = rope_tables(positions, self.frequencies, x.dtype, rope.attention_factor)
        window = rope_tables(positions, self.window_frequencies, x.dtype, window_rope.attention_factor)
        for block, windowed in zip(self.model.layers, self.config.windowed, strict=True):
            cos, sin = window if windowed else full
            x = block(x, cos, sin, state)
        normalized: Tensor = self.model.norm(x)
        return normalized
