"""Options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_RECIPE = "int8"
MODEL_HELP = "A known name, a .gguf file, a folder of safetensors, or org/name on the Hugging Face hub."


class DType(StrEnum):
    """Element types of weights, activations and KV cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class ExecutorChoice(StrEnum):
    """Who computes."""

    auto = "auto"
    compiled = "compiled"
    eager = "eager"


class Numerics(StrEnum):
    """What is promised of compiled code's numbers."""

    invariant = "invariant"
    free = "free"


DTypeOption = Annotated[DType, typer.Option(help="Weights, activations and KV cache of the eager executor.")]
ExecutorOption = Annotated[
    ExecutorChoice,
    typer.Option(
        envvar="HEADRACE_EXECUTOR", help="Native code made for the model, or PyTorch; auto compiles where it can."
    ),
]
RecipeOption = Annotated[
    str, typer.Option(help="Numbers that compiled code computes with: int8, bf16, float32, … (see docs/quant.md).")
]
NumericsOption = Annotated[
    Numerics,
    typer.Option(
        help="Of compiled code. invariant: a sequence's logits depend on its own tokens alone, to the bit; free: "
        "nothing is promised, and long prompts are computed a little faster (see docs/quant.md)."
    ),
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads that compute; by default one a core.")]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write one JSON object to a file; - is standard output.")
]
