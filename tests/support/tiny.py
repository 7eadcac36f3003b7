"""Small random models of each family, from Transformers, in its own file format."""

import torch
import transformers

COMMON = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
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

CONFIGS = {
    "llama3": lambda: transformers.LlamaConfig(**COMMON, head_dim=16, rope_parameters=LLAMA3_ROPE),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=32),
}


def make(name, seed=0):
    """A float32 model with repeatable random weights, wide enough that a wrong token shows."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:  # norm weights at their default of one would hide that they are not applied
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
