"""Malformed and hostile requests: what each must be answered with.

The table is shared: the parser's tests run the cases that concern bodies alone, and the gateway's tests send all of
them over HTTP. Names in ``param`` are paths as the caller wrote them; None means that no one field is to blame.
``needs_server`` marks what only a running server can judge: transport, names of models, vocabulary and context.
"""

from __future__ import annotations

import json

from agent_cases import AGENT_ACCEPTED, AGENT_CASES
from bad_requests import MODEL, Case

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
USER = {"role": "user", "content": "Hi"}


def chat(
    name: str,
    param: str | None,
    /,
    *,
    code: str | None = None,
    server: bool = False,
    status: int = 400,
    **fields: object,
) -> Case:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 4, **fields}
    return Case(name, CHAT, json.dumps(body).encode(), param, (status,), code=code, needs_server=server)


def text(
    name: str,
    param: str | None,
    /,
    *,
    code: str | None = None,
    server: bool = False,
    status: int = 400,
    **fields: object,
) -> Case:
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 4, **fields}
    return Case(name, TEXT, json.dumps(body).encode(), param, (status,), code=code, needs_server=server)


def embed(
    name: str,
    param: str | None,
    /,
    *,
    code: str | None = None,
    server: bool = False,
    status: int = 400,
    **fields: object,
) -> Case:
    body = {"model": MODEL, "input": "Hi", **fields}
    return Case(name, EMBED, json.dumps(body).encode(), param, (status,), code=code, needs_server=server)


def raw(name: str, tail: bytes, param: str | None, path: str = CHAT) -> Case:
    """A chat whose body goes on with ``tail``, which ``json.dumps`` would not write."""
    head = b'{"model": "MODEL", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, '
    return Case(name, path, head + tail + b"}", param)


def message(name: str, param: str | None, *messages: object) -> Case:
    return chat(f"message: {name}", param, messages=list(messages))


def tool(name: str, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def schema_format(**more: object) -> dict[str, object]:
    named = {"name": "n", "schema": {}, **more}
    return {"type": "json_schema", "json_schema": {key: value for key, value in named.items() if value is not None}}


SYNTAX = [
    Case("empty body", CHAT, b"", None),
    Case("white space", CHAT, b" \n\t ", None),
    Case("not JSON", CHAT, b"prompt=hello", None),
    Case("unfinished object", CHAT, b'{"model": "MODEL", "messages": [', None),
    Case("single quotes", CHAT, b"{'model': 'MODEL'}", None),
    Case("trailing comma", TEXT, b'{"model": "MODEL", "prompt": "Hi",}', None),
    Case("trailing garbage", TEXT, b'{"model": "MODEL", "prompt": "Hi"} x', None),
    Case("two documents", TEXT, b'{"model": "MODEL", "prompt": "Hi"}' * 2, None),
    Case("comment", TEXT, b'{"model": "MODEL", /* hi */ "prompt": "Hi"}', None),
    Case("not UTF-8", CHAT, b'{"model": "\xff\xfe"}', None),
    Case("UTF-16", CHAT, '{"model": "MODEL"}'.encode("utf-16"), None),
    Case("encoded surrogate", TEXT, b'{"model": "MODEL", "prompt": "\xed\xa0\x80"}', None),
    Case("null byte in syntax", TEXT, b'{"model": "MODEL",\x00 "prompt": "Hi"}', None),
    Case("body is null", CHAT, b"null", None),
    Case("body is a list", CHAT, b"[]", None),
    Case("body is a string", TEXT, b'"Hi"', None),
    Case("body is a number", TOKENIZE, b"1e5", None),
    Case("body is a huge number", TOKENIZE, b"1" + b"0" * 10_000, None),
    Case("100,000 brackets", CHAT, b"[" * 100_000, None),
    Case("100,000 objects", CHAT, b'{"a":' * 100_000, None),
    Case("deep prompt", TEXT, b'{"model": "MODEL", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    Case(
        "deep closed messages", CHAT, b'{"model": "MODEL", "messages": ' + b"[" * 500 + b"]" * 500 + b"}", "messages[0]"
    ),
    raw(
        "deep template variables",
        b'"chat_template_kwargs": {"a": ' + b"[" * 100 + b"]" * 100 + b"}",
        "chat_template_kwargs",
    ),
    raw("very deep template variables", b'"chat_template_kwargs": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
    raw("deep tools", b'"tools": ' + b"[" * 300 + b"]" * 300, "tools[0]"),
]

NUMBERS = [
    raw("temperature NaN", b'"temperature": NaN', "temperature"),
    raw("temperature Infinity", b'"temperature": Infinity', "temperature"),
    raw("top_p -Infinity", b'"top_p": -Infinity', "top_p"),
    raw("temperature 1e999", b'"temperature": 1e999', "temperature"),
    raw("bias 1e999", b'"logit_bias": {"5": 1e999}', "logit_bias.5"),
    raw("seed of 400 digits", b'"seed": 1' + b"0" * 400, "seed"),
    raw("seed of 5,000 digits", b'"seed": 1' + b"0" * 5_000, "seed"),
    raw("n of 400 digits", b'"n": 1' + b"0" * 400, "n"),
    raw("number in template variables over range", b'"chat_template_kwargs": {"a": 1e999}', "chat_template_kwargs.a"),
    chat("temperature too high", "temperature", temperature=2.5),
    chat("temperature negative", "temperature", temperature=-0.1),
    chat("temperature as a string", "temperature", temperature="1"),
    chat("temperature as a boolean", "temperature", temperature=True),
    chat("top_p 0", "top_p", top_p=0),
    chat("top_p over 1", "top_p", top_p=1.01),
    chat("min_p over 1", "min_p", min_p=1.5),
    chat("top_k -2", "top_k", top_k=-2),
    chat("top_k as a fraction", "top_k", top_k=1.5),
    chat("repetition_penalty 0", "repetition_penalty", repetition_penalty=0),
    chat("repetition_penalty next to 0", "repetition_penalty", repetition_penalty=5e-324),
    chat("presence_penalty too low", "presence_penalty", presence_penalty=-2.1),
    chat("frequency_penalty too high", "frequency_penalty", frequency_penalty=2.1),
    chat("n 0", "n", n=0),
    chat("n 129", "n", n=129),
    chat("n as a boolean", "n", n=True),
    chat("n as a fraction", "n", n=1.5),
    chat("n as a list", "n", n=[1]),
    chat("seed over int64", "seed", seed=2**63),
    chat("seed as a string", "seed", seed="7"),
    chat("max_tokens 0", "max_tokens", max_tokens=0),
    chat("max_tokens negative", "max_tokens", max_tokens=-1),
    chat("max_tokens over int32", "max_tokens", max_tokens=2**31),
    chat("two lengths that differ", "max_completion_tokens", max_completion_tokens=5),
    chat("min_tokens over max_tokens", "min_tokens", min_tokens=5),
    chat("min_tokens negative", "min_tokens", min_tokens=-1),
    chat("top_logprobs 21", "top_logprobs", logprobs=True, top_logprobs=21),
    chat("top_logprobs without logprobs", "top_logprobs", top_logprobs=2),
    chat("logprobs as a number", "logprobs", logprobs=2),
    text("logprobs 21", "logprobs", logprobs=21),
    text("logprobs as a boolean", "logprobs", logprobs=True),
    text("best_of over n", "best_of", best_of=3, code="unsupported_parameter"),
]

FIELDS = [
    Case("nothing given", CHAT, b"{}", "model", code="missing_required_parameter"),
    Case("no messages", CHAT, b'{"model": "MODEL"}', "messages", code="missing_required_parameter"),
    Case("no prompt", TEXT, b'{"model": "MODEL"}', "prompt", code="missing_required_parameter"),
    chat("model as a number", "model", model=5),
    chat("model null", "model", model=None),
    chat("misspelt field", "max_token", max_token=4, code="unknown_field"),
    chat("field of the other route", "prompt", prompt="Hi", code="unknown_field"),
    chat("field with an odd name", "`a.b`[0]", **{"`a.b`[0]": 1}),
    chat("field with an empty name", "", **{"": 1}),
    chat(
        "unknown field in stream_options",
        "stream_options.include_usages",
        stream=True,
        stream_options={"include_usages": True},
    ),
    chat("stream as a string", "stream", stream="true"),
    chat("stream_options without stream", "stream_options", stream_options={"include_usage": True}),
    chat("stream_options as a list", "stream_options", stream=True, stream_options=[]),
    chat("padding", "stream_options.include_obfuscation", stream=True, stream_options={"include_obfuscation": True}),
    chat("stop empty", "stop", stop=""),
    chat("stop with an empty string", "stop[1]", stop=["a", ""]),
    chat("stop as a number", "stop", stop=5),
    chat("stop of 17", "stop", stop=["a"] * 17),
    chat("stop with null", "stop[0]", stop=[None]),
    chat("stop of 1001 characters", "stop[1]", stop=["a", "b" * 1001]),
    chat("stop_token_ids negative", "stop_token_ids[1]", stop_token_ids=[1, -1]),
    chat("stop_token_ids as strings", "stop_token_ids[0]", stop_token_ids=["1"]),
    chat("stop_token_ids over int32", "stop_token_ids[0]", stop_token_ids=[2**31]),
    chat("bias over 100", "logit_bias.7", logit_bias={"5": 1, "7": 101}),
    chat("bias as a string", "logit_bias.5", logit_bias={"5": "a"}),
    chat("bias of a word", "logit_bias.hello", logit_bias={"hello": 1}),
    chat("bias of a negative id", "logit_bias.-1", logit_bias={"-1": 1}),
    chat("bias of an id over int32", "logit_bias.9999999999", logit_bias={"9999999999": 1}),
    chat("bias of an id in Arabic digits", "logit_bias.٣", logit_bias={"٣": 1}),
    chat("bias as a list", "logit_bias", logit_bias=[1]),
    chat("user as an object", "user", user={}),
    chat("metadata with a number", "metadata.a", metadata={"a": 1}),
    chat("metadata of 17", "metadata", metadata={str(i): "" for i in range(17)}),
    chat("service_tier unknown", "service_tier", service_tier="gold"),
    chat("priority over 1000", "priority", priority=1001),
    chat("priority as a word", "priority", priority="high"),
    chat("deadline of nothing", "deadline_ms", deadline_ms=0),
    chat("deadline as a date", "deadline_ms", deadline_ms="2030-01-01"),
    chat("timings as a number", "timings", timings=1),
    chat("cache_salt empty", "cache_salt", cache_salt=""),
    chat("cache_salt too long", "cache_salt", cache_salt="s" * 1025),
    chat("user too long", "user", user="u" * 1025),
    chat("template variables as a list", "chat_template_kwargs", chat_template_kwargs=[]),
    chat("template variable of the request", "chat_template_kwargs.messages", chat_template_kwargs={"messages": []}),
    chat("head and tail", "continue_final_message", add_generation_prompt=True, continue_final_message=True),
    chat("tools as a string", "tools", tools="all"),
    chat("tool without a name", "tools[0].function.name", tools=[{"type": "function", "function": {}}]),
    chat("tool with a bad name", "tools[0].function.name", tools=[tool("get weather")]),
    chat("tool of another kind", "tools[0].type", tools=[{"type": "web_search"}]),
    chat("two tools of one name", "tools[1].function.name", tools=[tool("f"), tool("f")]),
    chat("parameters as a list", "tools[0].function.parameters", tools=[tool("f", parameters=[])]),
    chat("deep parameters", "tools[0].function.parameters", tools=[tool("f", parameters=deep(200))]),
    chat("tool_choice without tools", "tool_choice", tool_choice="required"),
    chat("tool_choice of no kind", "tool_choice", tool_choice="any", tools=[tool("f")]),
    chat(
        "tool_choice of no tool",
        "tool_choice.function.name",
        tools=[tool("f")],
        tool_choice={"type": "function", "function": {"name": "g"}},
    ),
    chat(
        "tools allowed that are none",
        "tool_choice.allowed_tools.tools[0].function.name",
        tools=[tool("f")],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("g")]}},
    ),
    chat("min_tokens of a call", "min_tokens", tools=[tool("f")], tool_choice="required", min_tokens=2),
    chat("format of no kind", "response_format.type", response_format={"type": "xml"}),
    chat("schema without a name", "response_format.json_schema.name", response_format=schema_format(name=None)),
    chat("schema as a string", "response_format.json_schema.schema", response_format=schema_format(schema="x")),
    chat("two forms", "regex", response_format={"type": "json_object"}, regex="a"),
    chat("form and ignore_eos", "ignore_eos", choice=["a"], ignore_eos=True),
    chat("no choice", "choice", choice=[]),
    chat("empty choice", "choice[0]", choice=[""]),
    text("two forms of a text", "grammar", regex="a", grammar="start: /a/"),
    text("min_tokens of a form", "min_tokens", regex="a", min_tokens=1),
    chat("functions", "functions", functions=[{"name": "f"}], code="unsupported_parameter"),
    chat("audio", "modalities", modalities=["text", "audio"], code="unsupported_parameter"),
    chat("web search", "web_search_options", web_search_options={}, code="unsupported_parameter"),
    chat("reasoning effort of no kind", "reasoning_effort", reasoning_effort="huge"),
    chat("reasoning effort of a model without", "reasoning_effort", reasoning_effort="high", server=True),
    text("suffix", "suffix", suffix=" the end", code="unsupported_parameter"),
]

MESSAGES = [
    message("none", "messages"),
    chat("messages as a string", "messages", messages="Hi"),
    chat("messages as an object", "messages", messages=USER),
    chat("messages null", "messages", messages=None),
    message("null", "messages[1]", USER, None),
    message("a string", "messages[0]", "Hi"),
    message("no role", "messages[0].role", {"content": "Hi"}),
    message("unknown role", "messages[1].role", USER, {"role": "robot", "content": "Hi"}),
    message("role as a number", "messages[0].role", {"role": 1, "content": "Hi"}),
    message("no content", "messages[0].content", {"role": "user"}),
    message("content null", "messages[0].content", {"role": "user", "content": None}),
    message("content as a number", "messages[0].content", {"role": "user", "content": 5}),
    message("content as an object", "messages[0].content", {"role": "user", "content": {"type": "text"}}),
    message("content empty list", "messages[0].content", {"role": "user", "content": []}),
    message("content list of strings", "messages[0].content[0]", {"role": "user", "content": ["Hi"]}),
    message("part without type", "messages[0].content[0].type", {"role": "user", "content": [{"text": "Hi"}]}),
    message("part without text", "messages[0].content[0].text", {"role": "user", "content": [{"type": "text"}]}),
    message(
        "image",
        "messages[0].content[1].type",
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
            ],
        },
    ),
    message("unknown field", "messages[0].contents", {"role": "user", "contents": "Hi"}),
    message("assistant with nothing", "messages[0].content", {"role": "assistant"}),
    message("assistant with no calls", "messages[0].content", {"role": "assistant", "tool_calls": []}),
    message(
        "call with decoded arguments",
        "messages[0].tool_calls[0].function.arguments",
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}],
        },
    ),
    message("tool without call id", "messages[0].tool_call_id", {"role": "tool", "content": "4"}),
    message("lone surrogate", "messages[0].content", {"role": "user", "content": "\ud800"}),
    message("reversed surrogates", "messages[0].content", {"role": "user", "content": "\ude00\ud83d"}),
    raw("lone surrogate in a key", b'"metadata": {"\\udfff": "a"}', "metadata"),
]

PROMPTS = [
    text("prompt empty", "prompt", prompt=""),
    text("prompt null", "prompt", prompt=None),
    text("prompt as a number", "prompt", prompt=5),
    text("prompt as an object", "prompt", prompt={"text": "Hi"}),
    text("prompt list empty", "prompt", prompt=[]),
    text("prompt list of an empty string", "prompt[0]", prompt=[""]),
    text("prompt list with an empty string", "prompt[1]", prompt=["Hi", ""]),
    text("prompt list of an empty list", "prompt[0]", prompt=[[]]),
    text("prompt list with an empty list", "prompt[1]", prompt=[[1], []]),
    text("prompt of null", "prompt[0]", prompt=[None]),
    text("prompt of ids and words", "prompt[1]", prompt=[1, "Hi"]),
    text("prompt of words and lists", "prompt[1]", prompt=["Hi", [1]]),
    text("prompt nested thrice", "prompt[0][0]", prompt=[[[1]]]),
    text("prompt of booleans", "prompt[0]", prompt=[True]),
    text("prompt of fractions", "prompt[0]", prompt=[1.5]),
    text("prompt of negative ids", "prompt[1]", prompt=[1, -1]),
    text("prompt of huge ids", "prompt[0][0]", prompt=[[2**31]]),
    text("prompt of lone surrogates", "prompt", prompt="\udc00"),
    text("too many prompts", "prompt", prompt=["a"] * 2049),
    text("chat field", "messages", messages=[USER], code="unknown_field"),
]

EMBEDDINGS = [
    embed("input empty", "input", input=""),
    embed("input null", "input", input=None),
    embed("input as an object", "input", input={"text": "Hi"}),
    embed("inputs none", "input", input=[]),
    embed("inputs with an empty one", "input[1]", input=["Hi", ""]),
    embed("inputs with an empty list", "input[1]", input=[[1], []]),
    embed("inputs of two kinds", "input[1]", input=[[1], "Hi"]),
    embed("inputs too many", "input", input=["a"] * 2049),
    embed("input of negative ids", "input[1]", input=[1, -1]),
    embed("encoding of no kind", "encoding_format", encoding_format="hex"),
    embed("dimensions none", "dimensions", dimensions=0),
    embed("dimensions as a word", "dimensions", dimensions="all"),
    embed("pooling of no kind", "pooling", pooling="max"),
    embed("normalize as a number", "normalize", normalize=2),
    embed("user of an embedding too long", "user", user="u" * 1025),
    embed("priority of an embedding", "priority", priority=1001),
    embed("streamed embedding", "stream", stream=True, code="unknown_field"),
    embed("embedding of a prompt", "prompt", prompt="Hi", code="unknown_field"),
    Case("embedding of nothing", EMBED, b'{"model": "MODEL"}', "input", code="missing_required_parameter"),
    Case("embedding by no model", EMBED, b'{"input": "Hi"}', "model", code="missing_required_parameter"),
]

TOKENS = [
    Case("tokenize nothing", TOKENIZE, b"{}", "prompt"),
    Case("tokenize both", TOKENIZE, json.dumps({"prompt": "Hi", "messages": [USER]}).encode(), "messages"),
    Case("tokenize a list", TOKENIZE, b'{"prompt": ["Hi"]}', "prompt"),
    Case("tokenize empty messages", TOKENIZE, b'{"messages": []}', "messages"),
    Case("tokenize misspelt", TOKENIZE, b'{"promt": "Hi"}', "promt", code="unknown_field"),
    Case("detokenize nothing", DETOKENIZE, b"{}", "tokens", code="missing_required_parameter"),
    Case("detokenize words", DETOKENIZE, b'{"tokens": ["Hi"]}', "tokens[0]"),
    Case("detokenize a negative id", DETOKENIZE, b'{"tokens": [5, -5]}', "tokens[1]"),
    Case("detokenize null", DETOKENIZE, b'{"tokens": null}', "tokens"),
]

_BIG = b'{"model": "MODEL", "prompt": "' + b"a" * 50_000_000 + b'"}'
_CHAT_BODY = json.dumps({"model": MODEL, "messages": [USER], "max_tokens": 4}).encode()

SERVER = [
    chat("unknown model", "model", model="gpt-nothing", server=True, status=404, code="model_not_found"),
    chat("empty model", "model", model="", server=True, status=404, code="model_not_found"),
    text("model with a path", "model", model="../../etc/passwd", server=True, status=404, code="model_not_found"),
    chat("bias outside the vocabulary", "logit_bias.191222", logit_bias={"191222": -100}, server=True),
    chat("stop token outside the vocabulary", "stop_token_ids[0]", stop_token_ids=[191222], min_tokens=1, server=True),
    chat("everything stops", "stop_token_ids", stop_token_ids=list(range(49152)), min_tokens=1, server=True),
    text("prompt outside the vocabulary", "prompt[1]", prompt=[1, 191222], server=True),
    text("prompts outside the vocabulary", "prompt[1][0]", prompt=[[1], [191222]], server=True),
    embed("model of embeddings", "model", model="text-embedding-3-small", server=True, status=404),
    embed("input outside the vocabulary", "input[1]", input=[1, 191222], server=True),
    embed("inputs outside the vocabulary", "input[1][0]", input=[[1], [191222]], server=True),
    embed("over-long input", "input[1]", input=["Hi", "hello " * 100_000], server=True, code="context_length_exceeded"),
    embed("fewer dimensions", "dimensions", dimensions=256, server=True),
    Case("detokenize outside the vocabulary", DETOKENIZE, b'{"tokens": [191222]}', "tokens[0]", needs_server=True),
    text("over-long prompt", "prompt", prompt="hello " * 100_000, server=True, code="context_length_exceeded"),
    text("over-long ids", "prompt", prompt=[1] * 200_000, server=True, code="context_length_exceeded"),
    chat(
        "over-long chat",
        "messages",
        messages=[{"role": "user", "content": "hello " * 100_000}],
        server=True,
        code="context_length_exceeded",
    ),
    chat("max_tokens over the context", "max_tokens", max_tokens=10_000_000, server=True),
    text("max_tokens over the context, text", "max_tokens", max_tokens=10_000_000, server=True),
    Case("50 MB body", TEXT, _BIG, None, status=(413,), needs_server=True),
    Case("content type is text", CHAT, _CHAT_BODY, None, (415,), {"Content-Type": "text/plain"}, needs_server=True),
    Case("content type is a form", CHAT, b"model=MODEL", None, (415,), FORM, needs_server=True),
    Case("content encoding", CHAT, _CHAT_BODY, None, (415, 400), {"Content-Encoding": "br"}, needs_server=True),
    Case("unknown route", "/v1/nothing", b"{}", None, (404,), needs_server=True),
    Case("unknown model described", "/v1/models/nothing", b"", "model", (404,), method="GET", needs_server=True),
    Case("wrong method", CHAT, b"", None, (405,), method="GET", needs_server=True),
    Case("wrong method on models", "/v1/models", b"{}", None, (405,), needs_server=True),
    Case("path traversal", "/v1/models/..%2f..%2fetc%2fpasswd", b"", "model", (404,), method="GET", needs_server=True),
    Case("path with a null byte", "/v1/models/%00", b"", "model", (404, 400), method="GET", needs_server=True),
]  # fmt: skip
CASES = [*SYNTAX, *NUMBERS, *FIELDS, *MESSAGES, *PROMPTS, *EMBEDDINGS, *TOKENS, *SERVER, *AGENT_CASES]

# Odd and acceptable: each must be served.
ACCEPTED = [
    chat("null bytes in text", None, messages=[{"role": "user", "content": "a\x00b"}]),
    chat("whole surrogate pair", None, messages=[{"role": "user", "content": "\U0001f600"}]),
    chat("empty content", None, messages=[{"role": "user", "content": ""}]),
    chat("text parts", None, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
    chat("two equal lengths", None, max_completion_tokens=4),
    chat("nothing wanted of tools", None, tools=[], tool_choice="none", functions=[], function_call="auto"),
    chat("neutral formats", None, response_format={"type": "text"}, modalities=["text"], n=1),
    chat("neutral efforts", None, verbosity="medium", reasoning_effort="none"),
    chat(
        "labels",
        None,
        user="u",
        metadata={"k": "v"},
        store=True,
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        prompt_cache_retention="24h",
        parallel_tool_calls=False,
        prediction={"type": "content", "content": "x"},
    ),
    chat("urgent, in time", None, priority=-1000, deadline_ms=1e9, service_tier="flex"),
    chat("stop empty list", None, stop=[]),
    chat(
        "template variables of any name",
        None,
        chat_template_kwargs=dict.fromkeys(("self", "tokenizer", "size", "make", "text", "field"), 1),
    ),
    chat("smallest repetition penalty", None, repetition_penalty=0.01),
    chat("bounds", None, temperature=2, top_p=1, presence_penalty=-2, frequency_penalty=2.0, seed=-(2**63), top_k=-1),
    chat("every option null", None, temperature=None, stop=None, tools=None, stream_options=None, n=None),
    text("null bytes in a prompt", None, prompt="a\x00b"),
    text("token ids", None, prompt=[1, 2, 3]),
    text("two prompts", None, prompt=["Hi", "Ho"]),
    text("two lists of ids", None, prompt=[[1], [2, 3]]),
    text("best_of equal to n", None, best_of=2, n=2),
    text("no suffix", None, suffix=""),
    Case("byte order mark", TEXT, b'\xef\xbb\xbf{"model": "MODEL", "prompt": "Hi", "max_tokens": 4}', None),
    Case("duplicate key", TEXT, b'{"model": "MODEL", "prompt": "Ho", "prompt": "Hi", "max_tokens": 4}', None),
    embed("one input", None),
    embed("inputs", None, input=["Hi", "Ho"]),
    embed("input of ids", None, input=[1, 2, 3]),
    embed("inputs of ids", None, input=[[1], [2, 3]], encoding_format="base64", user="u"),
    embed("options of an embedding", None, pooling="last", normalize=False, priority=-5, deadline_ms=1e9),
    embed("no option of an embedding", None, pooling=None, normalize=None, encoding_format=None, dimensions=None),
    Case("tokenize nothing much", TOKENIZE, b'{"prompt": ""}', None),
    Case("detokenize nothing much", DETOKENIZE, b'{"tokens": []}', None),
    *AGENT_ACCEPTED,
]  # fmt: skip
