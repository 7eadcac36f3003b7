"""The Llama line: Llama 2 and 3, SmolLM2, Mistral without a window, Qwen2, Qwen2.5, Qwen3.

One forward pass serves a ragged batch: tokens of many sequences side by side in one dimension T, each with its
position. Only attention needs to know which token belongs to which sequence, so it is the caller's.

The modules carry the names of the Hugging Face checkpoint, which makes loading a copy by name.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import CheckpointError
from headrace.models.checkpoint import Checkpoint
from headrace.models.config import LlamaConfig, parse_llama
from headrace.models.families import family_of
from headrace.models.layers import (
    Attend,
    Embedding,
    GatedMLP,
    Linear,
    RMSNorm,
    rope_frequencies,
    rope_tables,
    rotate,
)
from headrace.models.weights import Progress, fill, fit

DTYPES = (torch.float32, torch.bfloat16)


class Attention(nn.Module):
    """Grouped-query attention: projections, optional per-head norms, rope; ``attend`` does the rest."""

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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        mixed = attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """``[T, hidden] -> [T, hidden]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Trunk(nn.Module):
    """Everything below the output layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class LlamaModel(nn.Module):
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

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The normalized hidden vectors that ``logits`` takes.

        Args:
            tokens: ``int64 [T]``, of any number of sequences.
            positions: ``int64 [T]``, each token's position in its own sequence.
            attend: Called once a layer, in order; see ``headrace.models.layers.Attend``.

        Returns:
            ``[T, hidden]`` in the model's dtype.
        """
        x: Tensor = self.model.embed_tokens(tokens)
        cos, sin = rope_tables(positions, self.frequencies, x.dtype)
        for block in self.model.layers:
            x = block(x, cos, sin, attend)
        normalized: Tensor = self.model.norm(x)
        return normalized

    def logits(self, hidden: Tensor) -> Tensor:
        """The next token's logits.

        Args:
            hidden: ``[R, hidden]``, the rows of ``hidden``'s result that matter.

        Returns:
            ``float32 [R, vocab]``.
        """
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return nn.functional.linear(hidden, head.weight).float()


def skeleton(checkpoint: Checkpoint) -> LlamaModel:
    """The model without its weights: parameters on the meta device, buffers in memory. To look at, not to run.

    Raises:
        CheckpointError: As ``load_model``.
    """
    family_of(checkpoint.config, checkpoint.path)
    config = parse_llama(checkpoint.config, checkpoint.path)
    with torch.device("meta"):
        model = LlamaModel(config).requires_grad_(requires_grad=False).eval()
    model.register_buffer("frequencies", rope_frequencies(config.rope, config.head_dim), persistent=False)
    return model


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> LlamaModel:
    """Build the model and copy its weights, one tensor at a time.

    Args:
        checkpoint: An open checkpoint of the Llama line.
        dtype: ``torch.float32`` or ``torch.bfloat16``.
        progress: Called after every tensor with (weights copied, weights in all).
        device: Where the weights go.

    Raises:
        CheckpointError: The architecture is unknown, the config is unusable, or a tensor is missing, left over
            or of another shape than the config says. Found before any weight memory is taken.
        ValueError: ``dtype`` is neither of the two.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, not {dtype}")
    family_of(checkpoint.config, checkpoint.path)
    config = parse_llama(checkpoint.config, checkpoint.path)
    with torch.device("meta"):
        model = LlamaModel(config).to(dtype).requires_grad_(requires_grad=False).eval()
    fit(model, checkpoint, spare=("lm_head.weight",) if config.tied else ())
    if config.tied and "lm_head.weight" in checkpoint.names():
        _check_tied(checkpoint)
    model = model.to_empty(device=device)
    frequencies = rope_frequencies(config.rope, config.head_dim).to(device)
    model.register_buffer("frequencies", frequencies, persistent=False)
    fill(model, checkpoint, progress)
    return model


def _check_tied(checkpoint: Checkpoint) -> None:
    """A tied model may repeat its embedding as output layer, but not bring another one."""
    head, embedding = checkpoint.read("lm_head.weight"), checkpoint.read("model.embed_tokens.weight")
    if not np.array_equal(head, embedding):
        raise CheckpointError(
            "the config ties the output layer to the embedding, and the two differ",
            file=checkpoint.path,
            tensor="lm_head.weight",
        )
