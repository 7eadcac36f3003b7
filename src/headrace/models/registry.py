"""Which family computes which model, and the model's spec. No PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import CheckpointError
from headrace.models.checkpoint import Checkpoint
from headrace.models.configs.deepseek_v3 import parse_deepseek_v3
from headrace.models.configs.gemma3 import parse_gemma3
from headrace.models.configs.gpt_oss import parse_gpt_oss
from headrace.models.configs.granite_hybrid import parse_granite_hybrid
from headrace.models.configs.llama import parse_llama
from headrace.models.configs.mamba2 import parse_mamba2
from headrace.models.configs.reader import ConfigReader
from headrace.models.spec import ModelSpec, StateGroup


class FamilyConfig(Protocol):
    """What the config of every family has."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""

    @property
    def hidden_size(self) -> int:
        """Elements of a token's hidden vector."""

    @property
    def context_length(self) -> int:
        """Most tokens of a sequence."""

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding matrix."""

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps."""


@dataclass(frozen=True, slots=True)
class Family:
    """A line of models that one module computes.

    Attributes:
        name: The module in ``families/``, whose ``Model`` takes what ``parse`` returns.
        architectures: ``architectures`` of ``config.json`` -> ``model_type``.
        parse: Reads a config; the second argument is what errors name.
    """

    name: str
    architectures: Mapping[str, str]
    parse: Callable[[Mapping[str, Any], object], FamilyConfig]


FAMILIES = (
    Family(
        "llama",
        {
            "LlamaForCausalLM": "llama",
            "MistralForCausalLM": "mistral",
            "Qwen2ForCausalLM": "qwen2",
            "Qwen3ForCausalLM": "qwen3",
        },
        parse_llama,
    ),
    Family("deepseek_v3", {"DeepseekV3ForCausalLM": "deepseek_v3"}, parse_deepseek_v3),
    Family("gemma3", {"Gemma3ForCausalLM": "gemma3_text"}, parse_gemma3),
    Family("gpt_oss", {"GptOssForCausalLM": "gpt_oss"}, parse_gpt_oss),
    Family("mamba2", {"Mamba2ForCausalLM": "mamba2"}, parse_mamba2),
    Family("granite_hybrid", {"GraniteMoeHybridForCausalLM": "granitemoehybrid"}, parse_granite_hybrid),
)


def family_of(config: Mapping[str, Any], file: object) -> Family:
    """The family of a config: by ``architectures`` where given, else by ``model_type``.

    Raises:
        CheckpointError: No family knows the model, or the two keys contradict each other.
    """
    known = {arch: (family, kind) for family in FAMILIES for arch, kind in family.architectures.items()}
    names, kind = config.get("architectures"), config.get("model_type")
    if names is None:
        for family, model_type in known.values():
            if model_type == kind:
                return family
        choices = ", ".join(model_type for _, model_type in known.values())
        raise CheckpointError(f"config key 'model_type' is {kind!r:.80}; known are {choices}", file=file)
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in known:
        choices = ", ".join(known)
        raise CheckpointError(f"architecture {name!r:.80} is unknown; known are {choices}", file=file)
    family, model_type = known[name]
    if kind != model_type:
        raise CheckpointError(
            f"config key 'model_type' is {kind!r:.80}, but architecture {name!r} goes with {model_type!r}", file=file
        )
    return family


def load_spec(checkpoint: Checkpoint, name: str) -> ModelSpec:
    """What scheduler, memory and API need to know of a model, without reading a weight.

    Args:
        checkpoint: An open checkpoint.
        name: The name that clients ask for.

    Raises:
        CheckpointError: The architecture is unknown or the config is unusable.
    """
    family = family_of(checkpoint.config, checkpoint.path)
    config = family.parse(checkpoint.config, checkpoint.path)
    return ModelSpec(
        name=name,
        family=family.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context_length=config.context_length,
        eos_token_ids=ConfigReader(checkpoint.config, checkpoint.path).token_ids("eos_token_id", config.vocab_size),
        state_groups=config.state_groups(),
        parameters=sum(math.prod(checkpoint.shape(tensor)) for tensor in checkpoint.names()),
    )
