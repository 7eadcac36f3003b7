"""A small random model of every family whose state is more than keys and values of all tokens, from Transformers."""

from typing import Any

import torch
import transformers
from tiny import COMMON, build

SHARED = {"vocab_size": 256, "hidden_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gemma3() -> Any:
    """Two layers in three see 24 tokens."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    return build(
        transformers.Gemma3TextConfig(**{**COMMON, "head_dim": 32, "sliding_window": 24, "layer_types": kinds})
    )


def gpt_oss() -> Any:
    """Every other layer sees 20 tokens; sinks that matter."""
    own = {"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 20, "num_local_experts": 6}
    model = build(transformers.GptOssConfig(**{**COMMON, **own, "num_experts_per_tok": 3}), attention="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(0, 2)
    return model


def mamba2() -> Any:
    """No attention at all."""
    own = {"num_heads": 8, "head_dim": 16, "state_size": 12, "num_hidden_layers": 3, "n_groups": 2}
    return build(transformers.Mamba2Config(**SHARED, **own), attention="eager")


def granite() -> Any:
    """Mamba and attention layers in turn."""
    own = {
        "intermediate_size": 48,
        "shared_intermediate_size": 80,
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "mamba_n_heads": 8,
        "mamba_d_state": 12,
        "max_position_embeddings": 512,
        "embedding_multiplier": 12,
        "attention_multiplier": 0.3,
    }
    return build(transformers.GraniteMoeHybridConfig(**SHARED, **own))


def deepseek() -> Any:
    """Latents, grouped routing."""
    own = {
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 16,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 512,
    }
    return build(transformers.DeepseekV3Config(**SHARED, **own))


FAMILIES = {"gemma3": gemma3, "gpt_oss": gpt_oss, "mamba2": mamba2, "granite": granite, "deepseek": deepseek}
