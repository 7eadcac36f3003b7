from headrace.engine.sampling_params import SamplingParams as SamplingParams
from headrace.errors import CheckpointError as CheckpointError
from headrace.errors import EngineError as EngineError
from headrace.errors import HeadraceError as HeadraceError
from headrace.errors import InvalidInput as InvalidInput
from headrace.llm import LLM as LLM
from headrace.llm import CompletionDelta as CompletionDelta
from headrace.llm import CompletionOutput as CompletionOutput
from headrace.llm import EmbeddingRequestOutput as EmbeddingRequestOutput
from headrace.llm import RequestOutput as RequestOutput

__version__: str
