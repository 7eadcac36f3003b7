"""gpt-oss: window and full layers in turn, attention sinks, and a mixture of experts in every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.gpt_oss import GptOssConfig
from headrace.models.families.decoder import Block, Decoder
from headrace.models.families.layers import Linear, rotate
from headrace.models.families.moe import mix_experts
from headrace.models.families.state import State


class WideRMSNorm(nn.Module):
    """Root mean square normalization that is rounded to the input's dtype after the weight is applied."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * scaled).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with a sink in each head: a learned score that belongs to no token.

    It takes its share of the softmax, so a head may attend to nothing (Xiao et al., arXiv 2309.17453).
    """

    def __init__(self, config: GptOssConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.sinks = nn.Parameter(torch.empty(config.heads))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = state.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value, sinks=self.sinks)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


class Experts(nn.Module):
    """All experts' weights; columns of gate and up projection alternate."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        count, hidden, inner = config.experts, config.hidden_size, config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        self.gate_up_proj = nn.Parameter(torch.empty(count, hidden, 2 * inner))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(count, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(count, inner, hidden))
        self.down_proj_bias = nn.Parameter(torch.empty(count, hidden))

    def forward(self, number: int, x: Tensor) -> Tensor:
        """What one expert makes of its tokens, ``[n, hidden] -> [n, hidden]``: a SwiGLU with bounds and ``up + 1``."""
        both = x @ self.gate_up_proj[number] + self.gate_up_proj_bias[number]
        gate = both[..., 0::2].clamp(max=self.limit)
        up = both[..., 1::2].clamp(-self.limit, self.limit)
        gated = (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
        return gated @ self.down_proj[number] + self.down_proj_bias[number]


class MLP(nn.Module):
    """A mixture of experts: each token is computed by the few that its router scores highest."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.count, self.ranks = config.experts, config.chosen_experts
        self.router = Linear(config.hidden_size, config.experts, bias=True)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        scores, chosen = self.router(x).topk(self.ranks, dim=-1)
        return mix_experts(x, chosen, scores.softmax(-1), self.count, self.experts)


def _block(config: GptOssConfig, layer: int) -> Block:
    norms = WideRMSNorm(config.hidden_size, config.norm_eps), WideRMSNorm(config.hidden_size, config.norm_eps)
    return Block(Attention(config, layer), MLP(config), norms)


class Model(Decoder):
    """A gpt-oss decoder (OpenAI, arXiv 2508.10925)."""

    def __init__(self, config: GptOssConfig) -> None:
        blocks = (_block(config, layer) for layer in range(config.layers))
        super().__init__(config, blocks, WideRMSNorm(config.hidden_size, config.norm_eps), config.head_dim)
