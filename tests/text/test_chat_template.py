"""Chat templates against Transformers' ``apply_chat_template``, in the styles that real models ship."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.text import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- The system message comes out first -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time, please") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string
            and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = '' %}
    {%- if message.content is string %}{%- set content = message.content %}{%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

MISTRAL = """{% set ns = namespace() %}
{%- if messages[0]["role"] == "system" %}
    {%- set ns.system = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages | rejectattr("role", "equalto", "tool") %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate user and assistant") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and ns.system is defined %}
            {{- "[INST] " + ns.system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- else %}{{- " " + message["content"] | trim + eos_token }}{%- endif %}
{%- endfor %}
"""

CHATML = """{% for message in messages %}
{% if loop.index > 40 %}{% break %}{% endif %}
{{ '<|im_start|>' + message.role + '\\n' }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}
{{ message.content }}<|im_end|>{% endif %}

{% endfor %}
    {% if add_generation_prompt %}
<|im_start|>assistant
    {% endif %}
"""

PARTS = """{% for message in messages %}<{{ message.role }}>
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message['content'] | selectattr('type', 'equalto', 'text') %}[{{ part['text'] }}]{% endfor %}
{%- endif %}{% endfor %}"""

STYLES = {"llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "chatml": CHATML, "parts": PARTS}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <now> & then, 'né'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": " Hi <b> & 'there' \n"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Héllo"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi! "},
        {"role": "user", "content": "中文?\n\n"},
    ],
    "reasoning": [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4", "reasoning": "easy", "refusal": None},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
            ],
        },
        {"role": "tool", "content": "{'sunny': 1}", "tool_call_id": "1"},
    ],
}


@pytest.fixture(scope="session")
def reference(byte_level_folder: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(byte_level_folder)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    return tokenizer


def both(reference: Any, style: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str | None, str | None]:
    """What each renders; None where it refuses."""
    try:
        ours = ChatTemplate(style, TOKENS).render(messages, **options)
    except InvalidInput:
        ours = None
    try:
        theirs = reference.apply_chat_template(messages, chat_template=style, tokenize=False, **options)
    except Exception:
        theirs = None
    return ours, theirs


@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": [TOOL]},
        {"add_generation_prompt": True, "enable_thinking": False},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("style", STYLES)
def test_renders_as_transformers(reference: Any, style: str, conversation: str, options: dict[str, Any]):
    ours, theirs = both(reference, STYLES[style], CONVERSATIONS[conversation], **options)
    assert ours == theirs


def test_most_of_those_render(reference: Any):
    rendered = [
        both(reference, template, messages, add_generation_prompt=True)[0] is not None
        for template in STYLES.values()
        for messages in CONVERSATIONS.values()
    ]
    assert sum(rendered) >= len(rendered) - 2


@pytest.mark.parametrize("style", STYLES)
def test_any_content_renders_as_transformers(reference: Any, texts: st.SearchStrategy[str], style: str):
    roles = st.sampled_from(["system", "user", "assistant", "tool", "clown"])
    value = texts | st.none()
    message = st.fixed_dictionaries(
        {"role": roles, "content": value}, optional={"reasoning_content": value, "name": value}
    )

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(message, min_size=1, max_size=5), st.sampled_from([(True, False), (False, False), (False, True)]))
    def check(messages: list[dict[str, Any]], flags: tuple[bool, bool]) -> None:
        options = dict(zip(("add_generation_prompt", "continue_final_message"), flags, strict=True))
        ours, theirs = both(reference, STYLES[style], messages, **options)
        assert ours == theirs

    check()


@pytest.mark.model
def test_smollm2_renders_as_transformers(smollm2_tokenizer: Any, reference: Any):
    template = smollm2_tokenizer.chat_template
    for name in ("plain", "system"):
        expected = reference.apply_chat_template(
            CONVERSATIONS[name], chat_template=template.source, tokenize=False, add_generation_prompt=True
        )
        assert template.render(CONVERSATIONS[name]) == expected


def test_date():
    text = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render([])
    assert abs((datetime.fromisoformat(text) - datetime.now()).days) <= 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('only cats') }}", "only cats"),
        ("{{ messages[3].content.x }}", "no element 3|undefined"),
        ("{{ messages[0].role | nosuchfilter }}", "nosuchfilter"),
        ("{% for x in %}", "cannot be compiled"),
        ("{% for i in range(10**9) %}{% endfor %}", "too long"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too long"),
        ("{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}", "more than"),
        ("{{ 'a' * 10**10 }}", "too long"),
        ("{{ [1] * 10**10 }}", "too long"),
        ("{{ 10**10**10 }}", "too large"),
        ("{{ '%1000000000d' % 1 }}", "too wide"),
        ("{{ '%*d' % (1000000000, 1) }}", "too wide"),
        ("{{ 'a'.ljust(10**10) }}", "width"),
        ("{{ 'a' | center(10**10) }}", "width"),
        ("{{ 'a\nb' | indent(10**10) }}", "width"),
        ("{{ messages.append(1) }}", "unsafe|safely"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{% set n = namespace(__class__=1) %}", "private"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "private"),
        ("{{ messages[0].role + 1 }}", "can only concatenate"),
        ("{{ 1 // 0 }}", "zero"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{% include 'x' %}", "no loader"),
        ("(" * 10 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
    ],
)
def test_failing_templates_blame_the_messages(source: str, says: str):
    with pytest.raises(InvalidInput, match=says) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert caught.value.field == "messages"


def test_messages_must_be_plain_data():
    template = ChatTemplate("{{ messages }}", {})
    for bad in ([1], [{"content": object()}], "text"):
        with pytest.raises(InvalidInput):
            template.render(bad)  # type: ignore[arg-type]
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidInput, match="deeply"):
        template.render([{"role": "user", "content": nested}])


def test_rendering_changes_nothing_and_twice_gives_the_same():
    template = ChatTemplate(CHATML, TOKENS)
    messages = [{"role": "assistant", "content": "x", "reasoning": "y"}]
    before = json.dumps(messages)
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(messages, **options) == template.render(messages, **options)
    assert json.dumps(messages) == before


def test_continuing_needs_something_to_continue():
    template = ChatTemplate(CHATML, TOKENS)
    for messages in ([], [{"role": "assistant"}], [{"role": "assistant", "content": 5}]):
        with pytest.raises(InvalidInput, match="continue"):
            template.render(messages, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(InvalidInput, match="exclude each other"):
        template.render([{"role": "user", "content": ""}], continue_final_message=True)
    with pytest.raises(InvalidInput, match="does not show"):
        ChatTemplate("content", {}).render([{"content": "x"}], add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "wants"),
    [
        ("{% for p in message.content %}{% endfor %}", True),
        ("{% for p in message['content'] | list %}{% endfor %}", True),
        ("{% set c = message.content %}{% for p in c %}{% endfor %}", True),
        ("{% for p in message.content.split('x') %}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% broken", False),
    ],
)
def test_whether_a_template_walks_over_parts(source: str, wants: bool):
    assert ChatTemplate(source, {}).wants_parts is wants
