"""Small random models of every variant, from Transformers."""

from typing import Any

import torch
import transformers

COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}

CONFIGS: dict[str, Any] = {
    "llama2": lambda: transformers.LlamaConfig(**COMMON),
    "llama_linear": lambda: transformers.LlamaConfig(**COMMON, rope_parameters=dict(LINEAR_ROPE)),
    "llama3": lambda: transformers.LlamaConfig(**COMMON, head_dim=16, rope_parameters=dict(LLAMA3_ROPE)),
    "llama_yarn": lambda: transformers.LlamaConfig(**COMMON, rope_parameters=dict(YARN_ROPE)),
    "llama_biased": lambda: transformers.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "smollm2": lambda: transformers.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**COMMON, head_dim=32, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=True),
}


def make(name: str, seed: int = 0, **changes: Any) -> Any:
    """A float32 Transformers model with repeatable weights, wide enough that a mistake shows in the logits."""
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return build(config, seed)


def build(config: Any, seed: int = 0, attention: str = "sdpa") -> Any:
    """The same from a Transformers configuration."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
