"""``LLM``: an engine in this process."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Literal, Unpack

from headrace.engine.messages import ReplicaInfo, TokenDelta
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import EngineError, InvalidInput
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions, ExecutorName, default_executor
from headrace.llm.collect import RequestCollector, embedding_output
from headrace.llm.conversations import AnswerOptions, ChatOptions, Message
from headrace.llm.driver import Call, EngineDriver
from headrace.llm.inputs import Job, JobMaker, PromptInput
from headrace.llm.outputs import CompletionDelta, EmbeddingRequestOutput, GenerationError, RequestOutput
from headrace.llm.progress import Count, load_progress, prompt_progress, pull_progress
from headrace.models.hub import resolve
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.quant.recipes import DEFAULT as DEFAULT_RECIPE
from headrace.quant.recipes import Numerics
from headrace.runtime.batch import Pooling
from headrace.text.constraint import ConstraintMaker
from headrace.text.model_text import ModelText
from headrace.text.tokenizer import Tokenizer, load_tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None
Dtype = Literal["float32", "bfloat16"]

# What the engine's options are called here: vLLM's names.
_OUR_NAMES = {
    "context_length": "max_model_len",
    "max_running": "max_num_seqs",
    "max_batch_tokens": "max_num_batched_tokens",
}


class LLM:
    """Generates text with a model, in this process.

    Safe to use from several threads; their requests are batched together. Names as in vLLM.

    Args:
        model: A known name such as ``smollm2-135m``, a ``.gguf`` file, a folder of safetensors, or ``org/name`` on
            the Hugging Face hub.
        executor: ``compiled``: native code made for the model; ``eager``: PyTorch; ``auto``: compiled where that is
            possible and no other ``dtype`` is asked for. None: ``HEADRACE_EXECUTOR`` in the environment, else auto.
        recipe: The numbers that compiled code computes with, such as ``int8``, ``bf16`` and ``float32``.
        numerics: ``invariant``: a sequence's logits depend on its own tokens alone; ``free``: nothing is promised.
        dtype: Element type of weights, activations and KV cache of the eager executor.
        threads: Threads that compute; None is one a core. PyTorch has one setting for the whole process.
        max_model_len: Most tokens of a sequence, prompt included; None is what model and KV memory allow.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Most tokens of a step.
        kv_memory: Bytes of KV memory; None is a quarter of the free memory, between 256 MiB and 4 GiB.
        enable_prefix_caching: Keep computed prefixes for later prompts.

    Attributes:
        info: What runs: context length, KV memory in tokens, threads, ...

    Raises:
        InvalidInput: The model is unknown, or an option cannot be used.
        CheckpointError: The model's files cannot be used.
        HeadraceError: The model cannot be fetched.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        executor: ExecutorName | None = None,
        recipe: str = DEFAULT_RECIPE,
        numerics: Numerics = "invariant",
        dtype: Dtype = "float32",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        kv_memory: int | None = None,
        enable_prefix_caching: bool = True,
    ) -> None:
        if dtype not in ("float32", "bfloat16"):
            raise InvalidInput(f"must be 'float32' or 'bfloat16', got {dtype!r:.80}", field="dtype")
        with pull_progress() as report:
            path = resolve(Path(model) if isinstance(model, os.PathLike) else model, report)
        checkpoint = open_checkpoint(path)
        self._tokenizer = load_tokenizer(checkpoint.tokenizer)
        try:
            options = EngineOptions(
                path=str(path),
                name=os.fspath(model),
                executor=executor or default_executor(),
                recipe=recipe,
                numerics=numerics,
                dtype=dtype,
                threads=threads,
                context_length=max_model_len,
                kv_memory=kv_memory,
                max_running=max_num_seqs,
                max_batch_tokens=max_num_batched_tokens,
                max_step_ms=0,  # nobody watches the gap between tokens here
                prefix_cache=enable_prefix_caching,
            )
            with load_progress() as loaded:
                vocab_size = load_spec(checkpoint, options.name).vocab_size
                text = ModelText(self._tokenizer)
                constraints = ConstraintMaker(self._tokenizer, vocab_size, text.format)
                engine, info = build_engine(options, constraints, loaded)
        except InvalidInput as error:
            raise error.renamed(_OUR_NAMES.get(error.field or "", error.field or "")) from None
        self.info: ReplicaInfo = info
        self._driver = EngineDriver(engine)
        self._jobs = JobMaker(text, info, constraints.try_grammar)

    def __repr__(self) -> str:
        info = self.info
        return f"<LLM {info.model}: {info.executor}, {info.threads} threads, context {info.context_length}>"

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        **options: Unpack[AnswerOptions],
    ) -> list[RequestOutput]:
        """Complete prompts, all of them batched together.

        Args:
            prompts: A prompt or a list of them. A prompt is a text, a list of token ids, ``{"prompt": text}`` or
                ``{"prompt_token_ids": ids}``.
            sampling_params: For all prompts, or one a prompt. ``max_tokens`` that the context cannot hold is cut.
            use_tqdm: Show progress, if standard error is a terminal.
            options: What the texts must look like: ``regex``, ``choice`` or ``grammar``; see ``AnswerOptions``.

        Returns:
            One output a prompt, in order.

        Raises:
            InvalidInput: A prompt or parameter cannot be used; nothing has run. ``field`` names it, such as
                ``prompts[2]``.
            GenerationError: The engine failed on some prompts; its ``outputs`` hold the others.
        """
        return self._run(self._jobs.prompts(prompts, sampling_params, options), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer conversations, by the model's chat template.

        Args:
            messages: A conversation, as a list of ``{"role": ..., "content": ...}``, or a list of conversations.
            sampling_params: As for ``generate``.
            use_tqdm: As for ``generate``.
            options: ``tools``, ``tool_choice``, ``parallel_tool_calls``, ``response_format``, ``regex``, ``choice``,
                ``grammar``, ``reasoning_effort``, ``add_generation_prompt``, ``continue_final_message``,
                ``chat_template_kwargs``, as in ``/v1/chat/completions``; see ``ChatOptions``.

        Raises:
            InvalidInput, GenerationError: As for ``generate``; fields are such as ``messages[0].content``.
        """
        return self._run(self._jobs.chats(messages, sampling_params, options), use_tqdm)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Turn prompts into vectors.

        Args:
            prompts: As for ``generate``.
            pooling: ``mean``: the mean of all tokens' hidden vectors, those that logits are made of; ``last``: the
                last token's.
            normalize: Give vectors of length 1.
            use_tqdm: As for ``generate``.

        Raises:
            InvalidInput: A prompt cannot be used; ``field`` names it. Nothing has run.
            EngineError: The engine failed on a prompt.
        """
        jobs = self._jobs.embeddings(prompts, pooling)
        with prompt_progress(use_tqdm) as report, self._driver.running(jobs) as call:
            ends = {delta.request: delta for delta in self._deltas(call, len(jobs), report)}
        return [
            embedding_output(job, ends[number], normalize=normalize)
            for number, job in zip(call.numbers, jobs, strict=True)
        ]

    def stream(
        self, prompt: PromptInput, sampling_params: SamplingParams | None = None, **options: Unpack[AnswerOptions]
    ) -> Generator[CompletionDelta, None, None]:
        """Complete one prompt, piece by piece; ``options`` as for ``generate``.

        The pieces of a sample, joined, are what ``generate`` returns. Close the iterator, or drop it, to stop early.

        Raises:
            InvalidInput: The prompt or a parameter cannot be used; raised at once.
            EngineError: The engine failed; raised while iterating.
        """
        return self._stream(self._jobs.prompt(prompt, sampling_params, options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generator[CompletionDelta, None, None]:
        """Answer one conversation, piece by piece; see ``stream``, and ``chat`` for the options."""
        return self._stream(self._jobs.chat(messages, sampling_params, options))

    def _stream(self, job: Job) -> Generator[CompletionDelta, None, None]:
        with self._driver.running([job]) as call:
            collector = RequestCollector(self._tokenizer, job, str(call.numbers[0]))
            while not call.done:
                for delta in self._driver.poll(call):
                    piece = collector.push(delta)
                    if piece.finish_reason == "error":
                        raise EngineError(f"the engine failed: {collector.error()}")
                    yield piece

    def _deltas(self, call: Call, jobs: int, report: Count | None) -> Iterator[TokenDelta]:
        """All that comes for a call of so many jobs."""
        while not call.done:
            yield from self._driver.poll(call)
            if report is not None:
                report(jobs - len(call.unfinished), jobs)

    def _run(self, jobs: list[Job], use_tqdm: bool) -> list[RequestOutput]:
        with prompt_progress(use_tqdm) as report, self._driver.running(jobs) as call:
            collectors = {
                number: RequestCollector(self._tokenizer, job, str(number))
                for number, job in zip(call.numbers, jobs, strict=True)
            }
            for delta in self._deltas(call, len(jobs), report):
                collectors[delta.request].push(delta)
        outputs = [collector.output() for collector in collectors.values()]
        errors = {i: error for i, c in enumerate(collectors.values()) if (error := c.error()) is not None}
        if errors:
            first, why = next(iter(errors.items()))
            others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            raise GenerationError(f"prompt {first}{others} of {len(jobs)} failed: {why}", outputs)
        return outputs
