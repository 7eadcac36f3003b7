"""``LLM``: generate text in this process, without a server. Names as in vLLM."""

from headrace.engine.sampling_params import SamplingParams
from headrace.llm.offline import LLM
from headrace.llm.outputs import (
    CompletionDelta,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    GenerationError,
    Logprob,
    RequestOutput,
)

__all__ = [
    "LLM",
    "CompletionDelta",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "GenerationError",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
]
