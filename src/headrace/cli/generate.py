"""``headrace generate``: complete a prompt without a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_RECIPE,
    MODEL_HELP,
    DType,
    DTypeOption,
    ExecutorChoice,
    ExecutorOption,
    Numerics,
    NumericsOption,
    RecipeOption,
    ThreadsOption,
)

if TYPE_CHECKING:
    from headrace.engine.sampling_params import SamplingParams
    from headrace.llm import LLM, RequestOutput


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; left out or -: read from standard input.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message: apply the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message; with --chat.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 256,
    min_tokens: Annotated[int, typer.Option(min=0, help="No end before so many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; higher is more random.")] = 0.7,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that make up this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the likeliest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Over prompt and output; 1 is none.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Subtracted from each token in the output.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Subtracted per occurrence in the output.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal outputs; by default a new one.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="String that ends the output; may be repeated.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    executor: ExecutorOption = ExecutorChoice.auto,
    recipe: RecipeOption = DEFAULT_RECIPE,
    numerics: NumericsOption = Numerics.invariant,
    dtype: DTypeOption = DType.float32,
    threads: ThreadsOption = None,
    context_length: Annotated[
        int | None, typer.Option(min=2, help="Most tokens, prompt included; by default what the model allows.")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="KV memory, such as 2GiB; by default a quarter of the free memory.")
    ] = None,
    timings: Annotated[bool, typer.Option("--timings", help="Print token counts and speed to standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
) -> None:
    """Complete a prompt in this process, without a server.

    The text appears as it is generated; Ctrl-C ends it.
    """
    if system is not None and not chat:
        raise typer.BadParameter("a system message needs --chat", param_hint="--system")
    text = _prompt_text(prompt)
    from headrace.cli.units import parse_bytes
    from headrace.engine.sampling_params import SamplingParams
    from headrace.llm import LLM

    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    llm = LLM(
        model,
        executor=executor.value,
        recipe=recipe,
        numerics=numerics.value,
        dtype=dtype.value,
        threads=threads,
        max_model_len=context_length,
        kv_memory=None if kv_memory is None else parse_bytes(kv_memory, "kv_memory"),
    )
    messages = None
    if chat:
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
    if as_json:
        _print_object(llm, model, text, messages, params)
    else:
        _print_stream(llm, text, messages, params, timings=timings)


def _prompt_text(prompt: str | None) -> str:
    from headrace.cli.output import read_stdin

    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
    return read_stdin()


def _print_stream(
    llm: LLM, text: str, messages: list[dict[str, str]] | None, params: SamplingParams, *, timings: bool
) -> None:
    pieces = llm.stream(text, params) if messages is None else llm.stream_chat(messages, params)
    tokens = 0
    try:
        for piece in pieces:
            tokens += len(piece.token_ids)
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    finally:  # a text that broke off ends its line too
        sys.stdout.write("\n")
        sys.stdout.flush()
    if timings and piece.timings is not None:
        took = piece.timings
        rate = f", {1 / took.time_per_output_token:.1f} tokens/s" if took.time_per_output_token else ""
        sys.stderr.write(
            f"{tokens} tokens ({piece.finish_reason}), first after {took.time_to_first_token or 0:.2f} s{rate}, "
            f"{took.end_to_end or 0:.2f} s in all\n"
        )


def _print_object(
    llm: LLM, model: str, text: str, messages: list[dict[str, str]] | None, params: SamplingParams
) -> None:
    from headrace.cli.output import print_json

    run = llm.generate(text, params) if messages is None else llm.chat(messages, params)
    print_json(_as_object(model, run[0]))


def _as_object(model: str, output: RequestOutput) -> dict[str, Any]:
    import msgspec

    (sample,) = output.outputs
    return {
        "model": model,
        "prompt": output.prompt,
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(sample.token_ids),
            "total_tokens": len(output.prompt_token_ids) + len(sample.token_ids),
            "cached_tokens": output.num_cached_tokens,
        },
        "timings": msgspec.to_builtins(sample.timings),
    }
