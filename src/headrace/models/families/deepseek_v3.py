"""DeepSeek-V3: latent attention and grouped routing of experts.

A token keeps one short vector a layer instead of keys and values of all heads. Heads make their keys and values of it
by a matrix; since scores and sums are linear, that matrix is applied to the query and to the mixed vector instead
("absorbed"), and the keys and values themselves are never computed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.deepseek_v3 import DeepseekV3Config
from headrace.models.families.decoder import Block, Decoder
from headrace.models.families.layers import (
    GatedMLP,
    Linear,
    RMSNorm,
    rotate,
)
from headrace.models.families.moe import mix_experts
from headrace.models.families.state import State

# The norms of compressed vectors have it whatever the config says of the others.
LATENT_EPS = 1e-6


class Attention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI, arXiv 2405.04434, section 2.1), absorbed form."""

    def __init__(self, config: DeepseekV3Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        hidden, rank, bias = config.hidden_size, config.latent_rank, config.bias
        queries = config.heads * (config.plain_dim + config.rope_dim)
        if config.query_rank:
            self.q_a_proj = Linear(hidden, config.query_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(config.query_rank, LATENT_EPS)
            self.q_b_proj = Linear(config.query_rank, queries, bias=False)
        else:
            self.q_proj = Linear(hidden, queries, bias=False)
        self.kv_a_proj_with_mqa = Linear(hidden, rank + config.rope_dim, bias=bias)
        self.kv_a_layernorm = RMSNorm(rank, LATENT_EPS)
        self.kv_b_proj = Linear(rank, config.heads * (config.plain_dim + config.value_dim), bias=False)
        self.o_proj = Linear(config.heads * config.value_dim, hidden, bias=bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        config = self.config
        to_key, to_value = self._halves()
        plain, turned = torch.split(self._queries(x), [config.plain_dim, config.rope_dim], dim=-1)
        compressed, key = self.kv_a_proj_with_mqa(x).split((config.latent_rank, config.rope_dim), dim=-1)
        key = self._rotate(key[:, None], cos, sin)[:, 0]
        latent = torch.cat((self.kv_a_layernorm(compressed), key), dim=-1)
        absorbed = torch.einsum("thp,hpr->thr", plain, to_key)
        query = torch.cat((absorbed, self._rotate(turned, cos, sin)), dim=-1)
        mixed = state.attend_latent(self.layer, query, latent, value_dim=config.latent_rank, scale=config.scale)
        values = torch.einsum("thr,hvr->thv", mixed, to_value)
        out: Tensor = self.o_proj(values.flatten(-2))
        return out

    def _queries(self, x: Tensor) -> Tensor:
        """``[T, heads, plain_dim + rope_dim]``."""
        config = self.config
        flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if config.query_rank else self.q_proj(x)
        return torch.unflatten(flat, -1, (config.heads, -1))

    def _halves(self) -> tuple[Tensor, Tensor]:
        """What makes keys and values of a latent, ``[heads, plain_dim or value_dim, latent_rank]``."""
        config = self.config
        by_head = torch.unflatten(self.kv_b_proj.weight, 0, (config.heads, -1))
        return by_head[:, : config.plain_dim], by_head[:, config.plain_dim :]

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[T, heads, rope_dim]``; pairs of neighbours come out in halves, queries and keys alike."""
        if self.config.interleaved:
            x = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        return rotate(x, cos, sin)


class Router(nn.Module):
    """Chooses a token's experts (DeepSeek-AI, arXiv 2412.19437, section 2.1.2). All in float32.

    The bias, which balanced the experts' load in training, has a say in what is chosen and none in the weights.
    """

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.config = config.router
        self.weight = nn.Parameter(torch.empty(config.router.experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.empty(config.router.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Experts and weights of each token.

        Args:
            x: ``[T, hidden]``.

        Returns:
            ``int64 [T, chosen]``, best first, and ``float32 [T, chosen]``.
        """
        config = self.config
        scores = nn.functional.linear(x.float(), self.weight).sigmoid()
        biased = torch.unflatten(scores + self.e_score_correction_bias, -1, (config.groups, -1))
        groups = biased.topk(2, dim=-1).values.sum(-1).topk(config.groups_chosen, dim=-1).indices
        open_groups = torch.zeros(biased.shape[:2], dtype=torch.bool, device=x.device).scatter(1, groups, value=True)
        eligible = biased.masked_fill(~open_groups[..., None], -torch.inf).flatten(-2)
        chosen = eligible.topk(config.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if config.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * config.factor


class Mixture(nn.Module):
    """Routed experts, and shared ones that every token passes."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = nn.ModuleList(
            GatedMLP(config.hidden_size, config.expert_size, bias=False) for _ in range(config.router.experts)
        )
        self.shared_experts = GatedMLP(config.hidden_size, config.shared_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        chosen, weights = self.gate(x)
        routed = mix_experts(x, chosen, weights, len(self.experts), lambda n, group: self.experts[n](group))
        mixed: Tensor = routed + self.shared_experts(x)
        return mixed


def _block(config: DeepseekV3Config, layer: int) -> Block:
    norms = RMSNorm(config.hidden_size, config.norm_eps), RMSNorm(config.hidden_size, config.norm_eps)
    dense = layer < config.dense_layers
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=False) if dense else Mixture(config)
    return Block(Attention(config, layer), mlp, norms)


class Model(Decoder):
    """A DeepSeek-V3 decoder (DeepSeek-AI, arXiv 2412.19437), without the layers that predict further tokens."""

    # Routing is decided by small differences, which rounding would turn round.
    wide = (".gate.weight", ".gate.e_score_correction_bias")

    def __init__(self, config: DeepseekV3Config) -> None:
        blocks = (_block(config, layer) for layer in range(config.layers))
        super().__init__(config, blocks, RMSNorm(config.hidden_size, config.norm_eps), config.rope_dim)

    def spare(self, name: str) -> bool:
        """The layers for multi-token prediction lie behind the last one, and the next token needs none of them."""
        first, behind = self.config.layers, self.config.layers + self.config.extra_layers
        return name.startswith(tuple(f"model.layers.{layer}." for layer in range(first, behind)))
