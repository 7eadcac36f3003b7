"""gpt-oss: window and full layers in turn, attention sinks, and a mixture of experts in every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.gpt_oss import GptOssConfig
from headrace.models.families.layers import Embedding, Linear, rope_frequencies, rope_tables, rotate
from headrace.models.families.model import FamilyModel
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


class Block(nn.Module):
    """One layer: attention and experts, each normalized before and added to its input."""

    def __init__(self, config: GptOssConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = WideRMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = WideRMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, state)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = WideRMSNorm(config.hidden_size, config.norm_eps)


class Model(FamilyModel):
    """A gpt-oss decoder (OpenAI, arXiv 2508.10925).

    Attributes:
        config: Its dimensions.
        frequencies: ``float32 [head_dim / 2]``, rope angles a position; not part of the checkpoint.
    """

    frequencies: Tensor

    def __init__(self, config: GptOssConfig) -> None:
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
