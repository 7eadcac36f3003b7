"""What the chat templates of real models write for a call, the format that is chosen for them reads back."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from conversations import identifier
from format_messages import arguments, prose
from real_templates import real_templates

from headrace.errors import InvalidInput
from headrace.text import ChatTemplate
from headrace.text.formats.catalog import GENERIC, format_named
from headrace.text.formats.detection import TOOL, detect_format, read_back, shows_tools, writes_calls
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import Text, Thought, ToolCall
from headrace.text.formats.writer import write_calls

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# Which format each template is of.
FORMATS = {
    "apertus": ["Apertus-8B-Instruct"],
    "apriel": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "cohere": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "deepseek-v3": ["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"],
    "deepseek-v3.1": ["deepseek-ai-DeepSeek-V3.1"],
    "functionary": ["meetkai-functionary-medium-v3.1"],
    "gemma-4": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "gigachat-3": ["GigaChat3-10B-A1.8B"],
    "gigachat-3.1": ["GigaChat3.1-10B-A1.8B"],
    "glm-4.5": ["GLM-4.6", "GLM-4.7-Flash"],
    "gpt-oss": ["openai-gpt-oss-120b"],
    "hermes": [
        *("Bielik-11B-v3.0-Instruct", "MiMo-VL", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"),
        *("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-QwQ-32B", "Qwen-Qwen2.5-7B-Instruct"),
        *("Qwen-Qwen3-0.6B", "Reka-Edge", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"),
    ],
    "hunyuan-3": ["tencent-Hy3"],
    "kimi-k2": ["moonshotai-Kimi-K2"],
    "lfm2": ["LFM2.5-8B-A1B"],
    "llama3-json": [
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "minimax-m2": ["MiniMax-M2"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "mistral-args": ["mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"],
    "mistral-ids": ["Mistral-Small-3.2-24B-Instruct-2506"],
    "nemotron-nano": ["NVIDIA-Nemotron-Nano-v2"],
    "qwen3-coder": ["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3-Coder", "Qwen3.5-4B", "StepFun3.5-Flash"],
    "seed-oss": ["ByteDance-Seed-OSS"],
    "solar-open": ["upstage-Solar-Open-100B"],
}
# These show no calls, or such as no format reads; it is known how they reason, or how the model calls.
BY_SIGNATURE = {
    "deepseek-v3": ["deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "llama-cpp-deepseek-r1"],
    "granite": ["ibm-granite-granite-3.3-2B-Instruct"],
    "kimi-k2": ["Kimi-K2-Instruct", "Kimi-K2-Thinking"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-Instruct"],
    "think": [
        *("HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4"),
        *("llama-cpp-rwkv-world", "openbmb-MiniCPM5-1B"),
    ],
}
# These write content that comes with a call where reasoning stands,
CONTENT_AS_REASONING = {"openai-gpt-oss-120b", "NVIDIA-Nemotron-Nano-v2"}
# and this leaves out what opens reasoning, which its generation prompt has.
UNOPENED = {"Apriel-1.6-15b-Thinker-fixed"}
PAIRS = [(name, template) for name, templates in FORMATS.items() for template in templates]


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(real_templates()[name], TOKENS)


def test_every_template_gets_the_right_format():
    expected = {
        template: name for names in (FORMATS, BY_SIGNATURE) for name, all_ in names.items() for template in all_
    }
    found = {name: detect_format(template_of(name)).name for name in real_templates()}
    assert found == {name: expected.get(name, GENERIC) for name in found}


def test_what_templates_say_of_tools():
    assert shows_tools(template_of("Qwen-Qwen3-0.6B"))
    assert writes_calls(template_of("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"))
    assert not shows_tools(template_of("microsoft-Phi-3.5-mini-instruct"))
    assert not writes_calls(template_of("microsoft-Phi-3.5-mini-instruct"))


def kinds_of(calls: list[dict[str, Any]]) -> dict[str, dict[str, frozenset[str]]]:
    return {
        call["function"]["name"]: {
            key: frozenset({"string" if isinstance(value, str) else "other"})
            for key, value in call["function"]["arguments"].items()
        }
        for call in calls
    }


def writable(found: Format, rng: random.Random, index: int) -> dict[str, Any]:
    """A call that can be written in a format; templates do not look whether it can."""
    assert found.calls is not None
    while True:
        name, made = f"tool_{index}", arguments(rng)
        written = json.dumps(made, ensure_ascii=False)
        if found.calls.arguments.syntax == "python" and ("\\" in written or "'" in written):
            continue  # the template of LFM 2 escapes nothing
        try:
            write_calls(found.calls, [ToolCall(name, written)])
        except InvalidInput:
            continue
        return {"id": identifier(rng), "type": "function", "function": {"name": name, "arguments": made}}


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_calls_are_read_as_the_template_writes_them(name: str, template: str):
    found, source = format_named(name), template_of(template)
    assert found.calls is not None
    before = [{"role": "user", "content": "Hello"}]
    refused = 0
    for seed in range(40):
        rng = random.Random(f"{template} {seed}")
        calls = [writable(found, rng, i) for i in range(rng.randint(1, 3) if found.calls.parallel else 1)]
        content, reasoning = rng.choice([f"A {prose(rng)}", ""]), rng.choice([f"B {prose(rng)}", ""])
        answer = {"role": "assistant", "content": content, "tool_calls": calls}
        if reasoning:
            answer["reasoning_content"] = reasoning
        try:
            shown = source.render([*before, answer], tools=[TOOL], add_generation_prompt=False)
            pieces = read_back(source, found, before, answer, [TOOL], kinds_of(calls))
        except InvalidInput:
            refused += 1
            continue
        read = [piece for piece in pieces if isinstance(piece, ToolCall)]
        assert [(call.name, json.loads(call.arguments)) for call in read] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in calls
        ], (shown, pieces)
        for call, made in zip(read, calls, strict=True):
            assert call.id == made["id"] if made["id"] in shown else call.id is None or call.id in shown
        texts = "".join(piece.text for piece in pieces if isinstance(piece, Text))
        thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
        assert not any(piece.fault for piece in pieces if isinstance(piece, Text)), (shown, pieces)
        if content and content in shown:
            assert content in thoughts if template in CONTENT_AS_REASONING else content in texts, (shown, pieces)
        if reasoning and reasoning in shown and template not in UNOPENED:
            assert reasoning in thoughts, (shown, pieces)
    assert refused < 30
