"""A GGUF file seen as a Hugging Face checkpoint: metadata and tensor names translated, q/k rows put back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import CheckpointError
from headrace.models.checkpoint import TokenizerSource
from headrace.models.content_id import content_id
from headrace.models.gguf import GGUFFile, GGUFTensor, stored_format
from headrace.models.stored import StoredWeight

T = TypeVar("T", bound=np.generic)

# GGUF architecture -> (model_type, architecture) of config.json. Mistral is written as "llama".
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
# The converter stores q and k rows of these for rotation of neighbouring pairs; ours rotates half against half.
PERMUTED = frozenset({"llama"})

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# How some writers say that there is no such token.
NO_TOKEN = 2**32 - 1
# Llama 3's divisors of the rotary frequencies: a table computed from the config, not a weight.
ROPE_FACTORS = "rope_freqs.weight"


class GGUFCheckpoint:
    """``Checkpoint`` over one GGUF file. See ``headrace.models.checkpoint`` for the methods' contracts.

    Raises:
        CheckpointError: As ``GGUFFile``; or the architecture is unknown, the file is one part of a split
            model, or a metadata value is missing or of the wrong type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        metadata = self._file.metadata
        if metadata.get("split.count", 0) not in (0, 1):
            raise CheckpointError(
                f"this is one of {metadata['split.count']} parts of a split GGUF file; "
                "join them first with `llama-gguf-split --merge FIRST_PART WHOLE.gguf`",
                file=path,
            )
        self._by_name = {hf_name(name): name for name in self._file.tensors if name != ROPE_FACTORS}
        self.config: Mapping[str, Any] = config_from_metadata(self._file)
        self._permuted = metadata["general.architecture"] in PERMUTED
        self.tokenizer = TokenizerSource(gguf={k: v for k, v in metadata.items() if k.startswith("tokenizer.")})

    def names(self) -> list[str]:
        """Names of all weights."""
        return list(self._by_name)

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape."""
        return self._tensor(name).shape

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A weight as float32, dequantized, rows in Hugging Face order."""
        values = self._file.read(self._tensor(name))
        heads = self._interleaved_heads(name)
        return unpermute(values, heads, self.path, name) if heads else values

    def stored_format(self, name: str) -> str:
        """The format in which ``stored`` gives a weight."""
        return stored_format(self._tensor(name))

    def stored(self, name: str) -> StoredWeight:
        """A weight as the file holds it, rows in Hugging Face order."""
        weight, heads = self._file.stored(self._tensor(name)), self._interleaved_heads(name)
        return weight.with_rows(lambda x: unpermute(x, heads, self.path, name)) if heads else weight

    def _interleaved_heads(self, name: str) -> int:
        """Over how many heads the converter interleaved a weight's rows; 0 if it did not."""
        if self._permuted and ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        if self._permuted and ".self_attn.k_proj." in name:
            return int(self.config["num_key_value_heads"])
        return 0

    def content_id(self) -> str:
        """A name of these weights."""
        tensors = (self._file.raw(tensor) for tensor in self._file.tensors.values())
        return content_id([self.path], bytes(self._file.header()), tensors)

    def _tensor(self, name: str) -> GGUFTensor:
        try:
            return self._file.tensors[self._by_name[name]]
        except KeyError:
            raise CheckpointError("the checkpoint holds no such tensor", file=self.path, tensor=name) from None


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that has none comes back unchanged."""
    block = _BLOCK_NAME.fullmatch(name)
    if block and block[2] in _IN_BLOCK:
        return f"model.layers.{int(block[1])}.{_IN_BLOCK[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if stem in _TOP and kind in ("weight", "bias") else name


def unpermute(values: npt.NDArray[T], heads: int, file: object, tensor: str) -> npt.NDArray[T]:
    """Undo the converter's row order within each head: (0, d/2, 1, d/2+1, ...) back to (0, 1, 2, ...).

    Args:
        values: A projection ``[heads * head_dim, in]`` or its bias ``[heads * head_dim]``.
        heads: Heads that the rows belong to.
        file: For the error.
        tensor: For the error.

    Raises:
        CheckpointError: The rows do not divide into heads of even size.
    """
    rows = values.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise CheckpointError(f"{rows} rows do not divide into {heads} heads of even size", file=file, tensor=tensor)
    paired = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


class _Metadata:
    """Typed access to the values of one architecture, with errors that name the key."""

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.file = file
        self.prefix = prefix

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        full = f"{self.prefix}.{key}"
        value = self.file.metadata.get(full, default)
        if value is ...:
            raise CheckpointError(f"metadata key {full!r} is missing", file=self.file.path)
        if value is default:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(
                f"metadata key {full!r} has an unusable value of type {type(value).__name__}", file=self.file.path
            )
        return value

    def integer(self, key: str, default: Any = ...) -> Any:
        return self.get(key, int, default)

    def number(self, key: str, default: Any = ...) -> Any:
        return self.get(key, (int, float), default)


def config_from_metadata(file: GGUFFile) -> dict[str, Any]:
    """The ``config.json`` that a GGUF file's metadata and tensor table amount to.

    Raises:
        CheckpointError: The architecture is unknown, or a value is missing or of the wrong type.
    """
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"GGUF architecture {arch!r} is unknown; known are {known}", file=file.path)
    data = _Metadata(file, arch)
    if data.integer("expert_count", 0):
        raise CheckpointError("mixtures of experts (metadata 'expert_count') are not supported", file=file.path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError("a matrix of token embeddings is needed", file=file.path, tensor="token_embd.weight")
    model_type, architecture = ARCHITECTURES[arch]
    hidden, heads = data.integer("embedding_length"), data.integer("attention.head_count")
    head_dim = data.integer("attention.key_length", hidden // max(heads, 1))
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": data.integer("feed_forward_length"),
        "num_hidden_layers": data.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "v_head_dim": data.integer("attention.value_length", head_dim),
        "hidden_act": "silu",
        "rms_norm_eps": data.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": data.integer("context_length"),
        "sliding_window": data.integer("attention.sliding_window", None),
        "use_sliding_window": True,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, data, head_dim),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(file.metadata),
    }


def _rope(file: GGUFFile, data: _Metadata, head_dim: int) -> dict[str, Any]:
    """Rope parameters; a table of divisors becomes our own rope type ``factors``."""
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": data.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": data.integer("rope.dimension_count", head_dim) / max(head_dim, 1),
    }
    scaling = data.get("rope.scaling.type", str, "none")
    factor = data.number("rope.scaling.factor", data.number("rope.scale_linear", 1.0))
    if ROPE_FACTORS in file.tensors:
        return {**rope, "rope_type": "factors", "factors": file.read(file.tensors[ROPE_FACTORS]).ravel().tolist()}
    if scaling == "linear" or (scaling == "none" and factor != 1.0):
        return {**rope, "rope_type": "linear", "factor": factor}
    if scaling != "none":
        raise CheckpointError(
            f"'rope.scaling.type' is {scaling!r:.50}; known in GGUF are none and linear", file=file.path
        )
    return rope


def _end_tokens(metadata: Mapping[str, Any]) -> list[Any]:
    """End of text, of turn and of message: a chat model may end its turn with any of them."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return [token for token in found if token not in (None, NO_TOKEN)]
