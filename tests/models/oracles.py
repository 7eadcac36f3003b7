"""Logits by either side, and GGUF twins of Transformers models, written the way the converter of llama.cpp does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from dense_state import DenseState


def our_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """``[T, vocab]`` of one whole sequence through a ``FamilyModel``."""
    state = DenseState(model.config.state_groups(), next(model.parameters()).dtype)
    return state.step(model, ("only", tokens))[0].numpy()


def their_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """The same through Transformers."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


_IN_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_IN_BLOCK[rest]}.{kind}"


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row order within a head as llama.cpp's rope for ``llama`` wants it: halves interleaved."""
    half = weight.shape[0] // heads // 2
    order = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)]
    return weight[order]


def write_gguf(
    model: Any,
    path: Path,
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_factors: np.ndarray | None = None,
    extra: Any = None,
) -> None:
    """Write a Transformers model as GGUF, its matrices in the given format."""
    config = model.config
    arch = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None)
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    if extra is not None:
        extra(writer)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    for name, parameter in model.named_parameters():
        _add(writer, name, as_stored(name, parameter.detach().numpy(), arch, config), matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_stored(name: str, weight: np.ndarray, arch: str, config: Any) -> np.ndarray:
    """A weight with its rows in the file's order."""
    if arch == "llama" and ".q_proj." in name:
        return permute(weight, config.num_attention_heads)
    if arch == "llama" and ".k_proj." in name:
        return permute(weight, config.num_key_value_heads)
    return weight


def _add(writer: Any, name: str, weight: np.ndarray, matrices: Any) -> None:
    kind = matrices if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)
