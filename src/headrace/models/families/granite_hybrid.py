"""Granite 4: a few layers of attention among many of Mamba-2, each followed by a shared expert and chosen ones.

Models without Mamba layers or without chosen experts are of this family too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.models.configs.granite_hybrid import ExpertsConfig, GraniteHybridConfig
from headrace.models.families.layers import Embedding, Linear, RMSNorm, rope_frequencies, rope_tables, rotate
from headrace.models.families.model import FamilyModel
from headrace.models.families.moe import mix_experts
from headrace.models.families.ssm import WIDE, Mixer, silu
from headrace.models.families.state import State

# Cosine and sine of the tokens' angles; None where attention sees no positions.
Angles = tuple[Tensor, Tensor] | None


class Attention(nn.Module):
    """Grouped-query attention, with rope or without positions."""

    def __init__(self, config: GraniteHybridConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.scale = config.attention_multiplier
        hidden, bias = config.hidden_size, config.attention_bias
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(hidden, queries, bias=bias)
        self.k_proj = Linear(hidden, keys, bias=bias)
        self.v_proj = Linear(hidden, keys, bias=bias)
        self.o_proj = Linear(queries, hidden, bias=bias)

    def forward(self, x: Tensor, angles: Angles, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        mixed = state.attend(self.layer, query, key, value, scale=self.scale)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


def gated(both: Tensor) -> Tensor:
    """``silu(gate) * up`` (SwiGLU; Shazeer, arXiv 2002.05202) of the two halves of the last dimension."""
    gate, up = both.chunk(2, dim=-1)
    return silu(gate).to(both.dtype) * up


class SharedExpert(nn.Module):
    """The expert of every token; one matrix holds the rows of its gate, then those of up."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.input_linear = Linear(hidden, 2 * inner, bias=False)
        self.output_linear = Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        out: Tensor = self.output_linear(gated(self.input_linear(x)))
        return out


class Matrices(nn.Module):
    """One matrix of each expert: ``[experts, rows, columns]``."""

    def __init__(self, experts: int, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, rows, columns))


class Router(nn.Module):
    """Chooses experts: those of the highest scores, weighted by the softmax over these."""

    def __init__(self, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.layer = Linear(hidden, experts, bias=False)
        self.chosen = chosen

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of equal scores, that of the lower expert comes first.

        Args:
            x: ``[T, hidden]``.

        Returns:
            Numbers and weights of the experts of each token, the highest first; int64 and float32 ``[T, chosen]``.
        """
        scores, order = self.layer(x).float().sort(dim=-1, descending=True, stable=True)
        weights = scores[:, : self.chosen].softmax(-1)
        return order[:, : self.chosen], weights.to(x.dtype).float()


class Experts(nn.Module):
    """A mixture of experts (Shazeer et al., arXiv 1701.06538), each as the shared one."""

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.router = Router(hidden, config.count, config.chosen)
        self.input_linear = Matrices(config.count, 2 * config.inner, hidden)
        self.output_linear = Matrices(config.count, hidden, config.inner)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        chosen, weights = self.router(x)
        count = self.input_linear.weight.shape[0]
        return mix_experts(x, chosen, weights, count, self._expert)

    def _expert(self, number: int, x: Tensor) -> Tensor:
        inner = gated(nn.functional.linear(x, self.input_linear.weight[number]))
        return nn.functional.linear(inner, self.output_linear.weight[number])


class Block(nn.Module):
    """One layer: attention or a mixer, then the experts; each normalized before, and added to its input in part."""

    def __init__(self, config: GraniteHybridConfig, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        self.multiplier = config.residual_multiplier
        mixer = config.mixer if config.layer_types[layer] == "mamba" else None
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config, layer) if mixer is None else None
        self.mamba = None if mixer is None else Mixer(mixer, layer)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.block_sparse_moe = None if config.experts is None else Experts(hidden, config.experts)
        self.shared_mlp = SharedExpert(hidden, config.shared_inner)

    def forward(self, x: Tensor, angles: Angles, state: State) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        normalized = self.input_layernorm(x)
        if self.self_attn is not None:
            mixed = self.self_attn(normalized, angles, state)
        elif self.mamba is not None:
            mixed = self.mamba(normalized, state)
        x = x + mixed * self.multiplier
        normalized = self.post_attention_layernorm(x)
        made = self.shared_mlp(normalized)
        if self.block_sparse_moe is not None:
            made = self.block_sparse_moe(normalized) + made
        out: Tensor = x + made * self.multiplier
        return out


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: GraniteHybridConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(len(config.layer_types)))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Model(FamilyModel):
    """A Granite 4 decoder (IBM, 2025: granite-4.0-h and granite-4.0), scaled after Yang et al., arXiv 2203.03466.

    Attributes:
        config: Its dimensions.
        frequencies: ``float32 [head_dim / 2]``, rope angles a position; None without positions. In no checkpoint.
    """

    wide = WIDE
    frequencies: Tensor | None

    def __init__(self, config: GraniteHybridConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = None if config.tied else Linear(config.hidden_size, config.vocab_size, bias=False)

    def make_tables(self, device: torch.device | str) -> None:
        """Compute what follows from the config and is in no checkpoint."""
        rope = self.config.rope
        frequencies = None if rope is None else rope_frequencies(rope, self.config.head_dim).to(device)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def hidden(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """See ``FamilyModel``."""
        x: Tensor = self.model.embed_tokens(tokens) * self.config.embedding_multiplier
        angles = None
        if self.frequencies is not None:
            angles = rope_tables(positions, self.frequencies, x.dtype, self.config.rope.attention_factor)
        for block in self.model.layers:
            x = block(x, angles, state)
        normalized: Tensor = self.model.norm(x)
        return normalized

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``FamilyModel``."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        scaled: Tensor = nn.functional.linear(hidden, head.weight).float() / self.config.logits_scaling
        return scaled
