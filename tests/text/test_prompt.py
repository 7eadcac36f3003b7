"""Prompts from messages, text and token ids, and every way to get them wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import InvalidInput
from headrace.models.checkpoint import TokenizerSource
from headrace.text import ChatTemplate, Tokenizer, chat_prompt, load_tokenizer, text_prompt, token_prompt
from headrace.text.prompt import normalize_messages

USER = {"role": "user", "content": "Hello\0 <|im_end|>"}


def test_chat_as_transformers(byte_level: Tokenizer, byte_level_folder: Path):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(byte_level_folder)
    expected = reference.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    prompt = chat_prompt(byte_level, [USER])
    assert list(prompt.tokens) == expected
    assert prompt.text is not None
    assert prompt.text.endswith("<|im_start|>assistant\n")


def test_template_variables_of_any_name(byte_level: Tokenizer):
    """Those of our own parameters too: the names come from requests."""
    variables: dict[str, Any] = dict.fromkeys(("self", "tokenizer", "messages", "template", "text", "field"), 1)
    assert chat_prompt(byte_level, [USER], **variables) == chat_prompt(byte_level, [USER])


def test_text_and_tokens(byte_level: Tokenizer):
    prompt = text_prompt(byte_level, "hello")
    assert prompt == text_prompt(byte_level, "hello")
    assert token_prompt(byte_level, prompt.tokens).tokens == prompt.tokens
    assert token_prompt(byte_level, np.array(prompt.tokens, np.int64)).tokens == prompt.tokens
    assert np.frombuffer(prompt.to_bytes(), "<i4").tolist() == list(prompt.tokens)
    assert token_prompt(byte_level, [byte_level.vocab_size], vocab_size=byte_level.vocab_size + 1)


@pytest.mark.parametrize(
    ("tokens", "field"),
    [
        ([], "prompt"),
        ([-1], "prompt[0]"),
        ([0, 10**6], "prompt[1]"),
        ([0, 10**30], "prompt[1]"),
        ([0, 1.5], "prompt[1]"),
        ([True], "prompt[0]"),
        (["a"], "prompt[0]"),
        ([None], "prompt[0]"),
        ([[1]], "prompt[0]"),
    ],
)
def test_bad_tokens(byte_level: Tokenizer, tokens: Any, field: str):
    with pytest.raises(InvalidInput) as caught:
        token_prompt(byte_level, tokens)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "\ud800", 5, None])
def test_bad_text(byte_level: Tokenizer, text: Any):
    with pytest.raises(InvalidInput) as caught:
        text_prompt(byte_level, text, field="prompt[3]")
    assert caught.value.field == "prompt[3]"


@pytest.mark.model
def test_text_of_missing_bytes_only_is_empty(smollm2_tokenizer: Tokenizer):
    with pytest.raises(InvalidInput, match="empty"):
        text_prompt(smollm2_tokenizer, "\x04")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": 5, "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": "a\udc00"}], "messages[0].content"),
        ([{"role": "user\udc00", "content": "a"}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x", 5]}], "messages[0].content[1]"),
        ([{"role": "user", "content": "", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
    ],
)
def test_bad_messages(byte_level: Tokenizer, messages: Any, field: str):
    with pytest.raises(InvalidInput) as caught:
        chat_prompt(byte_level, messages)
    assert caught.value.field == field


def test_parts_are_joined_by_newlines_unless_the_template_wants_them():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}, "c"]
    messages = [{"role": "user", "content": parts}]
    plain = ChatTemplate("{{ messages[0].content }}", {})
    assert plain.render(normalize_messages(plain, messages)) == "a\nb\nc"
    walking = ChatTemplate("{% for p in messages[0].content %}[{{ p.type }} {{ p.text }}]{% endfor %}", {})
    assert walking.render(normalize_messages(walking, messages)) == "[text a][text b][text c]"


def test_tool_arguments_are_parsed():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.x[0] }}", {})
    assert template.render(normalize_messages(template, messages)) == "1"
    assert call["function"] == {"name": "f", "arguments": '{"x": [1]}'}


@pytest.mark.parametrize("written", ["{", "[1]", "5", '"x"', "not JSON", "[" * 100_000])
def test_tool_arguments_that_are_no_object_stay_as_they_were_written(written: str):
    messages = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": written}}]}]
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {})
    assert template.render(normalize_messages(template, messages)) == written


def test_a_model_without_template(sentencepiece_metadata: dict[str, Any]):
    tokenizer = load_tokenizer(TokenizerSource(gguf=sentencepiece_metadata))
    with pytest.raises(InvalidInput, match="no chat template") as caught:
        chat_prompt(tokenizer, [USER])
    assert (caught.value.field, caught.value.code) == ("messages", "no_chat_template")


def test_answers_without_content_have_an_empty_one():
    """Many templates fail on a message without content, which is how OpenAI's clients send what only calls tools."""
    template = ChatTemplate("{% for m in messages %}[{{ m['content'] + '' }}]{% endfor %}", {})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for message in ({"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "assistant"}):
        (normal,) = normalize_messages(template, [message])
        assert template.render([normal]) == "[]"
