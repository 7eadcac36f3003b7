"""Options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DEFAULT_MODEL = "smollm2-135m"
MODEL_HELP = "A known name, a .gguf file, a folder of safetensors, or org/name on the Hugging Face hub."


class DType(StrEnum):
    """Element types of weights, activations and KV cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"


DTypeOption = Annotated[DType, typer.Option(help="Weights, activations and KV cache.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads that compute; by default one a core.")]
