"""Malformed and hostile requests of the Responses and Messages APIs, and odd ones that must be served."""

import json

from bad_requests import MODEL, Case

RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object"}
UNSUPPORTED = "unsupported_parameter"


def respond(name, param, /, *, code=None, server=False, status=400, **fields):
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 4, **fields}
    return Case(
        f"response: {name}", RESPONSES, json.dumps(body).encode(), param, (status,), code=code, needs_server=server
    )


def item(name, param, *items, code=None):
    return respond(f"item: {name}", param, input=list(items), code=code)


def said(name, param, /, *, code=None, server=False, status=400, **fields):
    body = {"model": MODEL, "messages": [USER], "max_tokens": 4, **fields}
    return Case(
        f"messages: {name}", MESSAGES, json.dumps(body).encode(), param, (status,), code=code, needs_server=server
    )


def turn(name, param, *turns, code=None):
    return said(f"turn: {name}", param, messages=list(turns), code=code)


def block(name, param, *blocks, role="user", code=None):
    return turn(name, f"messages[0].content[0]{param}", {"role": role, "content": list(blocks)}, USER, code=code)


def function(name="f", **more):
    return {"type": "function", "name": name, **more}


def custom(name="f", **more):
    return {"name": name, "input_schema": SCHEMA, **more}


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def text_format(**form):
    return {"format": {"type": "json_schema", "name": "n", "schema": {}, **form}}


CALL = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
REFUSED = {
    "background": True,
    "background_options": {"completion_window": "2h"},
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "moderation": {"model": "m"},
    "image": {"context_compression": "auto"},
    "access_programs": {"cyber": "standard"},
    "truncation": "auto",
}
NESTED = {
    "text.verbosity": {"text": {"verbosity": "high"}},
    "reasoning.summary": {"reasoning": {"summary": "detailed"}},
    "reasoning.generate_summary": {"reasoning": {"generate_summary": "concise"}},
    "reasoning.context": {"reasoning": {"context": "all_turns"}},
    "reasoning.mode": {"reasoning": {"mode": "pro"}},
    "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
    "prompt_cache_options.prewarm": {"prompt_cache_options": {"prewarm": True}},
    "tools[0].async": {"tools": [function(**{"async": True})]},
    "tools[0].allowed_callers": {"tools": [function(allowed_callers=["programmatic"])]},
    "tools[0].defer_loading": {"tools": [function(defer_loading=True)]},
    "tools[0].output_schema": {"tools": [function(output_schema={})]},
}
RESPONSE_CASES = [
    Case("response: nothing given", RESPONSES, b"{}", "model", code="missing_required_parameter"),
    Case("response: no input", RESPONSES, b'{"model": "MODEL"}', "input", code="missing_required_parameter"),
    Case("response: not JSON", RESPONSES, b"input=hello", None),
    Case("response: a list", RESPONSES, b"[]", None),
    Case("response: NaN", RESPONSES, b'{"model": "MODEL", "input": "Hi", "top_p": NaN}', "top_p"),
    Case("count: no input", INPUT_TOKENS, b"{}", "input", code="missing_required_parameter"),
    Case("count: temperature", INPUT_TOKENS, b'{"input": "Hi", "temperature": 1}', "temperature", code="unknown_field"),
    Case("count: personality", INPUT_TOKENS, b'{"input": "Hi", "personality": "friendly"}', "personality"),
    *(respond(name, name, code=UNSUPPORTED, **{name: value}) for name, value in REFUSED.items()),
    *(respond(path, path, code=UNSUPPORTED, **fields) for path, fields in NESTED.items()),
    respond("misspelt", "max_output_token", max_output_token=1, code="unknown_field"),
    respond("field of chats", "messages", messages=[USER], code="unknown_field"),
    respond("input as a number", "input", input=5),
    respond("empty input", "input", input=[]),
    respond("no tokens", "max_output_tokens", max_output_tokens=0),
    respond("too hot", "temperature", temperature=2.1),
    respond("top_p 0", "top_p", top_p=0),
    respond("top_logprobs 21", "top_logprobs", top_logprobs=21, include=["message.output_text.logprobs"]),
    respond("top_logprobs without include", "top_logprobs", top_logprobs=2),
    respond("include of nothing", "include[0]", include=["everything"]),
    respond("stream_options without stream", "stream_options", stream_options={}),
    respond("metadata of 17", "metadata", metadata={str(i): "" for i in range(17)}),
    respond("service_tier unknown", "service_tier", service_tier="gold"),
    respond("effort of no kind", "reasoning.effort", reasoning={"effort": "huge"}),
    respond("effort of a model without", "reasoning.effort", reasoning={"effort": "high"}, server=True),
    respond("web search", "tools[0].type", tools=[{"type": "web_search_preview"}], code=UNSUPPORTED),
    respond(
        "file search", "tools[0].type", tools=[{"type": "file_search", "vector_store_ids": ["v"]}], code=UNSUPPORTED
    ),
    respond("MCP", "tools[1].type", tools=[function(), {"type": "mcp", "server_label": "s"}], code=UNSUPPORTED),
    respond("custom tool", "tools[0].type", tools=[{"type": "custom", "name": "f"}], code=UNSUPPORTED),
    respond("chat's form of tools", "tools[0].function", tools=[{"type": "function", "function": {"name": "f"}}]),
    respond("tool without a name", "tools[0].name", tools=[{"type": "function"}]),
    respond("two tools of one name", "tools[1].name", tools=[function(), function()]),
    respond("deep parameters", "tools[0].parameters", tools=[function(parameters=deep(200))]),
    respond("choice without tools", "tool_choice", tool_choice="required"),
    respond("choice of no kind", "tool_choice", tool_choice="any", tools=[function()]),
    respond("choice of no tool", "tool_choice.name", tool_choice=function("g"), tools=[function()]),
    respond("choice of MCP", "tool_choice.type", tool_choice={"type": "mcp", "server_label": "s"}, tools=[function()]),
    respond(
        "tools allowed that are none",
        "tool_choice.tools[0].name",
        tools=[function()],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [function("g")]},
    ),
    respond("format of no kind", "text.format.type", text={"format": {"type": "xml"}}),
    respond("format without a schema", "text.format.schema", text={"format": {"type": "json_schema", "name": "n"}}),
    respond("chat's form of a format", "text.format.json_schema", text=text_format(json_schema={})),
    respond("deep schema", "text.format.schema", text=text_format(schema=deep(200))),
    respond("schema of nothing", "text.format.schema.type", text=text_format(schema={"type": "nothing"}), server=True),
    item("null", "input[0]", None),
    item("a string", "input[0]", "Hi"),
    item("of no type", "input[0].type", {"content": "Hi"}),
    item("of another type", "input[0].type", {"type": "computer_call", "call_id": "c"}),
    item("without a role", "input[0].role", {"type": "message", "content": "Hi"}),
    item("unknown role", "input[0].role", {"role": "robot", "content": "Hi"}),
    item("without content", "input[0].content", {"role": "user"}),
    item("unknown field", "input[0].name", {"role": "user", "content": "Hi", "name": "Ann"}, code="unknown_field"),
    item("content of chats", "input[0].content[0].type", {"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
    item(
        "image",
        "input[1].content[0].type",
        USER,
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:", "detail": "low"}]},
        code=UNSUPPORTED,
    ),
    item("file", "input[0].content[0].type", {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}),
    item("call without id", "input[0].call_id", {"type": "function_call", "name": "f", "arguments": "{}"}),
    item("decoded arguments", "input[0].arguments", {**CALL, "arguments": {}}),
    item("call of a program", "input[0].caller", {**CALL, "caller": {"type": "program", "caller_id": "c"}}),
    item("output as a number", "input[1].output", CALL, {"type": "function_call_output", "call_id": "c", "output": 4}),
    item("lone surrogate", "input[0].content", {"role": "user", "content": "\ud800"}),
    respond("sealed elsewhere", "input", input=[{"type": "reasoning", "encrypted_content": "gAAA"}, USER], server=True),
    respond("unknown reference", "input[1].id", input=[USER, {"type": "item_reference", "id": "msg_x"}], server=True),
    respond("unknown response", "previous_response_id", previous_response_id="resp_x", server=True),
    respond("unknown model", "model", model="gpt", server=True, status=404, code="model_not_found"),
    respond("over-long", "input", input="hello " * 100_000, server=True, code="context_length_exceeded"),
    respond("over the context", "max_output_tokens", max_output_tokens=10_000_000, server=True),
    Case("response: unknown", "/v1/responses/resp_x", b"", None, (404,), method="GET", needs_server=True),
    Case("response: unknown, deleted", "/v1/responses/resp_x", b"", None, (404,), method="DELETE", needs_server=True),
    Case("response: wrong method", RESPONSES, b"", None, (405,), method="GET", needs_server=True),
    Case("response: put", "/v1/responses/resp_x", b"{}", None, (405,), method="PUT", needs_server=True),
    Case("response: compact", "/v1/responses/compact", b"{}", None, (404, 405), needs_server=True),
]
MESSAGE_CASES = [
    Case("messages: nothing given", MESSAGES, b"{}", "model", code="missing_required_parameter"),
    Case("messages: not JSON", MESSAGES, b"prompt=hello", None),
    Case("messages: NaN", MESSAGES, b'{"model": "MODEL", "max_tokens": 1, "messages": [], "top_p": NaN}', "top_p"),
    Case("messages: no max_tokens", MESSAGES, json.dumps({"model": MODEL, "messages": [USER]}).encode(), "max_tokens"),
    Case(
        "messages: counted to a length",
        COUNT,
        json.dumps({"model": MODEL, "messages": [USER], "max_tokens": 1}).encode(),
        "max_tokens",
    ),
    Case("messages: nothing counted", COUNT, b"{}", "model", code="missing_required_parameter"),
    said("misspelt", "max_token", max_token=1, code="unknown_field"),
    said("field of chats", "n", n=1, code="unknown_field"),
    said("no tokens", "max_tokens", max_tokens=0),
    said("too hot", "temperature", temperature=1.1),
    said("top_k negative", "top_k", top_k=-1),
    said("stop of 17", "stop_sequences", stop_sequences=["a"] * 17),
    said("empty stop", "stop_sequences[0]", stop_sequences=[""]),
    said("stop as a string", "stop_sequences", stop_sequences="a"),
    said("system as a number", "system", system=5),
    said("image in system", "system[0].type", system=[{"type": "image", "source": {}}], code=UNSUPPORTED),
    said("container", "container", container="c", code=UNSUPPORTED),
    said("diagnostics", "diagnostics", diagnostics={"previous_message_id": None}, code=UNSUPPORTED),
    said("MCP", "mcp_servers", mcp_servers=[{"url": "https://x.example"}], code=UNSUPPORTED),
    said("context edits", "context_management", context_management={"edits": []}, code=UNSUPPORTED),
    said("cache of no kind", "cache_control.type", cache_control={"type": "forever"}),
    said("metadata of no kind", "metadata.user", metadata={"user": "u"}, code="unknown_field"),
    said("tier of no kind", "service_tier", service_tier="gold"),
    said("thinking of no kind", "thinking.type", thinking={"type": "between_tools"}),
    said("thinking without a budget", "thinking.budget_tokens", thinking={"type": "enabled"}),
    said("small budget", "thinking.budget_tokens", thinking={"type": "enabled", "budget_tokens": 1000}),
    said("budget over max_tokens", "thinking.budget_tokens", thinking={"type": "enabled", "budget_tokens": 1024}),
    said("hidden thinking", "thinking.display", thinking={"type": "adaptive", "display": "omitted"}, code=UNSUPPORTED),
    said(
        "thinking of a model without",
        "thinking",
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=2000,
        server=True,
    ),
    said("effort of no kind", "output_config.effort", output_config={"effort": "minimal"}),
    said("effort of a model without", "output_config.effort", output_config={"effort": "low"}, server=True),
    said("format of no kind", "output_config.format.type", output_config={"format": {"type": "xml", "schema": {}}}),
    said(
        "two formats",
        "output_format",
        output_config={"format": {"type": "json_schema", "schema": {}}},
        output_format={"type": "json_schema", "schema": {}},
    ),
    said("deep format", "output_format.schema", output_format={"type": "json_schema", "schema": deep(200)}),
    said(
        "web search",
        "tools[0].type",
        tools=[{"type": "web_search_20250305", "name": "w", "max_uses": 5}],
        code=UNSUPPORTED,
    ),
    said("bash", "tools[0].type", tools=[{"type": "bash_20250124", "name": "bash"}], code=UNSUPPORTED),
    said("chat's form of tools", "tools[0].type", tools=[{"type": "function", "function": {"name": "f"}}]),
    said("tool without a schema", "tools[0].input_schema", tools=[{"name": "f"}]),
    said("tool with a bad name", "tools[0].name", tools=[custom("get weather")]),
    said("two tools of one name", "tools[1].name", tools=[custom(), custom()]),
    said("deep schema", "tools[0].input_schema", tools=[custom(input_schema=deep(200))]),
    said("examples of a tool", "tools[0].input_examples", tools=[custom(input_examples=[{}])], code=UNSUPPORTED),
    said("deferred tool", "tools[0].defer_loading", tools=[custom(defer_loading=True)], code=UNSUPPORTED),
    said("choice as a string", "tool_choice", tool_choice="any", tools=[custom()]),
    said("choice of no kind", "tool_choice.type", tool_choice={"type": "required"}, tools=[custom()]),
    said("choice without tools", "tool_choice", tool_choice={"type": "any"}),
    said("choice of no tool", "tool_choice.name", tool_choice={"type": "tool", "name": "g"}, tools=[custom()]),
    said("no messages", "messages", messages=[]),
    turn("null", "messages[0]", None),
    turn("without a role", "messages[0].role", {"content": "Hi"}),
    turn("unknown role", "messages[0].role", {"role": "tool", "content": "Hi"}),
    turn("content null", "messages[0].content", {"role": "user", "content": None}),
    turn("content empty", "messages[0].content", {"role": "user", "content": []}),
    turn("unknown field", "messages[0].name", {"role": "user", "content": "Hi", "name": "A"}, code="unknown_field"),
    turn("ends with nothing", "messages[1].content", USER, {"role": "assistant", "content": ""}),
    turn(
        "ends with a call",
        "messages[1].content",
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
    ),
    turn("lone surrogate", "messages[0].content", {"role": "user", "content": "\ud800"}),
    block("a string", "", "Hi"),
    block("without type", ".type", {"text": "Hi"}),
    block("image", ".type", {"type": "image", "source": {"type": "url", "url": "x"}}, code=UNSUPPORTED),
    block("document", ".type", {"type": "document", "source": {}}, code=UNSUPPORTED),
    block("search result", ".type", {"type": "search_result", "content": []}, code=UNSUPPORTED),
    block("of a server", ".type", {"type": "server_tool_use", "id": "1"}, role="assistant"),
    block("use by the user", ".type", {"type": "tool_use", "id": "1", "name": "f", "input": {}}),
    block(
        "image in a result",
        ".content[0].type",
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]},
        code=UNSUPPORTED,
    ),
    block("result without id", ".tool_use_id", {"type": "tool_result", "content": "4"}),
    block("encoded input", ".input", {"type": "tool_use", "id": "1", "name": "f", "input": "{}"}, role="assistant"),
    said("unknown model", "model", model="claude", server=True, status=404, code="model_not_found"),
    said("over-long", "messages", messages=[{"role": "user", "content": "hello " * 100_000}], server=True),
    Case("messages: form", MESSAGES, b"model=m", None, (415,), {"Content-Type": "text/plain"}, needs_server=True),
    Case("messages: wrong method", MESSAGES, b"", None, (405,), method="GET", needs_server=True),
    Case("messages: batches", "/v1/messages/batches", b"{}", None, (404,), needs_server=True),
]
AGENT_CASES = [*RESPONSE_CASES, *MESSAGE_CASES]
AGENT_ACCEPTED = [
    respond("everything null", None, **dict.fromkeys((*REFUSED, "tools", "text", "reasoning", "include", "user"))),
    respond(
        "labels", None, metadata={"k": "v"}, safety_identifier="s", prompt_cache_key="k", max_tool_calls=3, user="u"
    ),
    respond("neutral values", None, background=False, truncation="disabled", reasoning={"summary": "auto"}, text={}),
    respond("what is not there included", None, include=["reasoning.encrypted_content", "file_search_call.results"]),
    respond("nothing wanted of tools", None, tools=[], tool_choice="none"),
    respond("number without fraction", None, max_output_tokens=4.0),
    respond(
        "items of all kinds",
        None,
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            USER,
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            CALL,
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "4.", "annotations": []},
                    {"type": "refusal", "refusal": "No."},
                ],
            },
            USER,
        ],
    ),
    said("everything null", None, **dict.fromkeys(("system", "tools", "thinking", "metadata", "stream", "top_k"))),
    said("labels", None, metadata={"user_id": "u"}, service_tier="standard_only", inference_geo="eu", speed="fast"),
    said("more than the context", None, max_tokens=10_000_000, stop_sequences=["a", "e", "i", "o", " "]),
    said("system in the middle", None, messages=[USER, {"role": "system", "content": "Be brief."}, USER]),
    said(
        "results and text",
        None,
        messages=[
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1.0}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "1"}, {"type": "text", "text": "And?"}],
            },
        ],
    ),
    Case("messages: counted", COUNT, json.dumps({"model": MODEL, "messages": [USER], "system": "x"}).encode(), None),
    Case("count: input", INPUT_TOKENS, b'{"input": "Hi", "instructions": "x"}', None),
]
