"""The JSON schemas of requests and answers: what msgspec derives from the types, plus the rules of ``checks``.

Whoever adds a rule to ``checks`` states it here too, so that the published schema refuses what the server refuses.
What JSON Schema cannot say stays unsaid: that min_tokens is at most max_tokens, how deep template variables and schemas
may be, that tools have different names, that the tools of tool_choice are among them, and that response_format, regex,
choice and grammar exclude each other (with so many alternatives tools that generate from a schema give up); that the
budget of thinking is below max_tokens, and that a last message of the assistant holds text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from msgspec import UNSET

from headrace.api.anthropic.errors import AnthropicError
from headrace.api.anthropic.events import MessageEvent
from headrace.api.anthropic.message import AnthropicMessage, ModelInfo, ModelInfoList, TokenCount
from headrace.api.anthropic.request import CountTokensRequest, MessagesRequest
from headrace.api.chat import ChatRequest
from headrace.api.chat_answers import ChatCompletion, ChatCompletionChunk
from headrace.api.completion_answers import Completion
from headrace.api.completions import CompletionRequest
from headrace.api.embeddings import EmbeddingList, EmbeddingRequest
from headrace.api.errors import ErrorBody
from headrace.api.fields import INT32_MAX, RESERVED_VARIABLES
from headrace.api.prompts import PROMPTS_SCHEMA
from headrace.api.responses.events import StreamEvent
from headrace.api.responses.output import DeletedResponse, InputItemList, InputTokens, Response
from headrace.api.responses.request import LOGPROBS, InputTokensRequest, ResponsesRequest
from headrace.api.server_answers import DebugAnswer, Detokenized, Model, ModelList, Status, Tokenized
from headrace.api.tokenize import DetokenizeRequest, TokenizeRequest

Schema = dict[str, Any]

REQUESTS = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ResponsesRequest,
    InputTokensRequest,
    MessagesRequest,
    CountTokensRequest,
)
ANSWERS = (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    EmbeddingList,
    Model,
    ModelList,
    Tokenized,
    Detokenized,
    Status,
    DebugAnswer,
    ErrorBody,
    Response,
    *get_args(StreamEvent),
    InputItemList,
    DeletedResponse,
    InputTokens,
    AnthropicMessage,
    *get_args(MessageEvent),
    TokenCount,
    ModelInfo,
    ModelInfoList,
    AnthropicError,
)
PREFIX = "#/components/schemas/"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What the schema can say more precisely once the server knows what it serves.

    Attributes:
        models: Names that ``model`` may have; empty: any string.
        vocab_size: Token ids are below it.
        context_length: Most tokens of prompt and answer together.
        hidden_size: Numbers of an embedding.
        auth: Whether a key is needed.
        lenient: Whether unknown fields are ignored rather than refused.
    """

    models: tuple[str, ...] = ()
    vocab_size: int | None = None
    context_length: int | None = None
    hidden_size: int | None = None
    auth: bool = False
    lenient: bool = False


def components(served: Served) -> dict[str, Schema]:
    """All schemas by name, sorted."""
    _, requests = msgspec.json.schema_components(REQUESTS, ref_template=PREFIX + "{name}")
    _, answers = msgspec.json.schema_components(ANSWERS, ref_template=PREFIX + "{name}")
    # The tables below are shared; the schemas are edited in place.
    schemas: dict[str, Schema] = copy.deepcopy({**answers, **requests})
    _require_what_is_always_there(schemas)
    _state_rules(schemas)
    _narrow(schemas, served)
    if served.lenient:
        for name in requests:
            schemas[name].pop("additionalProperties", None)
    return dict(sorted(schemas.items()))


def _require_what_is_always_there(schemas: dict[str, Schema]) -> None:
    """An answer's field is in the JSON unless it is UNSET, whether or not it has a default."""
    for struct in _structs(ANSWERS):
        schema = schemas[struct.__name__]
        fields = msgspec.structs.fields(struct)
        tag = struct.__struct_config__.tag_field
        always = [field.encode_name for field in fields if field.default is not UNSET]
        schema["required"] = always if tag is None else [tag, *always]
        for prop in schema["properties"].values():
            prop.pop("default", None)


def _structs(roots: Iterable[type[msgspec.Struct]]) -> Iterable[type[msgspec.Struct]]:
    seen: dict[type[msgspec.Struct], None] = {}
    stack: list[Any] = [msgspec.inspect.type_info(root) for root in roots]
    while stack:
        info = stack.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls not in seen:
                seen[info.cls] = None
                stack += [field.type for field in info.fields]
        else:
            stack += getattr(info, "types", ())
            stack += [t for name in ("type", "item_type", "value_type") if (t := getattr(info, name, None))]
    return seen


def _null(*names: str) -> Schema:
    return {"properties": {name: {"type": "null"} for name in names}}


def _is(name: str, value: Any) -> Schema:
    return {"properties": {name: {"const": value}}, "required": [name]}


def _not_true(name: str) -> Schema:
    return {"properties": {name: {"enum": [None, False]}}}


def _needs(name: str, flag: str) -> Schema:
    """``name`` may be given only where ``flag`` is true."""
    return {"anyOf": [_null(name), _is(flag, True)]}


_STREAM = _needs("stream_options", "stream")
_HEAD_OR_TAIL = {"anyOf": [_not_true("add_generation_prompt"), _not_true("continue_final_message")]}
_INPUT = {
    "anyOf": [
        {"properties": {"input": {"type": "string"}}, "required": ["input"]},
        {"properties": {"input": {"type": "array", "minItems": 1}}, "required": ["input"]},
        {"properties": {"previous_response_id": {"type": "string"}}, "required": ["previous_response_id"]},
    ]
}
_RULES: dict[str, list[Schema]] = {
    "ChatRequest": [
        _STREAM,
        _needs("top_logprobs", "logprobs"),
        _HEAD_OR_TAIL,
        {"anyOf": [_null("max_tokens"), _null("max_completion_tokens")]},
    ],
    "CompletionRequest": [
        _STREAM,
        {"anyOf": [_null("best_of"), {"properties": {"best_of": {"const": 1}, "n": {"enum": [None, 1]}}}]},
    ],
    "TokenizeRequest": [
        {
            "anyOf": [
                {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]},
                {"properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}, "required": ["messages"]},
            ]
        },
        _HEAD_OR_TAIL,
    ],
    "ResponsesRequest": [
        _STREAM,
        _INPUT,
        {
            "anyOf": [
                {"properties": {"top_logprobs": {"enum": [None, 0]}}},
                {
                    "properties": {"include": {"type": "array", "contains": {"const": LOGPROBS}}},
                    "required": ["include"],
                },
            ]
        },
    ],
    "InputTokensRequest": [_INPUT],
    "AssistantMessage": [
        {
            "anyOf": [
                {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]},
                {"properties": {"refusal": {"type": "string"}}, "required": ["refusal"]},
                {"properties": {"function_call": {"type": "object"}}, "required": ["function_call"]},
                {"properties": {"tool_calls": {"type": "array", "minItems": 1}}, "required": ["tool_calls"]},
            ]
        }
    ],
}


def _state_rules(schemas: dict[str, Schema]) -> None:
    for name, rules in _RULES.items():
        schemas[name]["allOf"] = copy.deepcopy(rules)
    schemas["MessageItem"]["required"].remove("type")
    for name, field in (("CompletionRequest", "prompt"), ("EmbeddingRequest", "input")):
        schemas[name]["properties"][field].update(copy.deepcopy(PROMPTS_SCHEMA))
    for name in ("ChatRequest", "CompletionRequest"):
        _object_of(schemas[name], "logit_bias")["propertyNames"] = {"pattern": decimals_below(INT32_MAX + 1)}
    for name in ("ChatRequest", "TokenizeRequest"):
        reserved = {"not": {"enum": list(RESERVED_VARIABLES)}}
        _object_of(schemas[name], "chat_template_kwargs")["propertyNames"] = reserved


def _object_of(schema: Schema, name: str) -> Schema:
    """The object among the alternatives of a nullable property."""
    alternatives: list[Schema] = schema["properties"][name]["anyOf"]
    return next(option for option in alternatives if option.get("type") == "object")


def _narrow(schemas: dict[str, Schema], served: Served) -> None:
    if served.models:
        for schema in (schemas[request.__name__] for request in REQUESTS):
            kinds = [{"type": "null"}] if "model" not in schema["required"] else []
            model = schema["properties"]["model"]
            model.pop("type", None)
            model["anyOf"] = [{"type": "string", "enum": list(served.models)}, *kinds]
    if served.vocab_size is not None:
        for request, name in (
            ("ChatRequest", "stop_token_ids"),
            ("CompletionRequest", "stop_token_ids"),
            ("CompletionRequest", "prompt"),
            ("EmbeddingRequest", "input"),
            ("DetokenizeRequest", "tokens"),
        ):
            _lower_maximum(schemas[request]["properties"][name], served.vocab_size - 1)
        for request in ("ChatRequest", "CompletionRequest"):
            bias = _object_of(schemas[request], "logit_bias")
            bias["propertyNames"] = {"pattern": decimals_below(served.vocab_size)}
    if served.hidden_size is not None:
        schemas["EmbeddingRequest"]["properties"]["dimensions"]["enum"] = [served.hidden_size, None]
    if served.context_length is not None:
        for request, name in (
            ("ChatRequest", "max_tokens"),
            ("ChatRequest", "max_completion_tokens"),
            ("ChatRequest", "min_tokens"),
            ("ResponsesRequest", "max_output_tokens"),
            ("CompletionRequest", "max_tokens"),
            ("CompletionRequest", "min_tokens"),
        ):
            _lower_maximum(schemas[request]["properties"][name], served.context_length - 1)


def _lower_maximum(schema: Any, maximum: int) -> None:
    if isinstance(schema, dict):
        if schema.get("maximum") == INT32_MAX:
            schema["maximum"] = maximum
        for value in schema.values():
            _lower_maximum(value, maximum)
    elif isinstance(schema, list):
        for value in schema:
            _lower_maximum(value, maximum)


def decimals_below(limit: int) -> str:
    """A regular expression for the decimal numbers from 0 to ``limit - 1`` (limit ≥ 1), without leading zeros."""
    top = str(limit - 1)
    options = ["0"] + (["[1-9]" + _digits(len(top) - 2)] if len(top) > 1 else [])
    if len(top) > 2:
        options[-1] = f"[1-9][0-9]{{0,{len(top) - 2}}}"
    for i, digit in enumerate(top):
        low = 1 if i == 0 else 0
        if int(digit) > low:
            options.append(f"{top[:i]}[{low}-{int(digit) - 1}]{_digits(len(top) - i - 1)}")
    return f"^({'|'.join([*options, top])})$"


def _digits(count: int) -> str:
    return f"[0-9]{{{count}}}" if count > 1 else "[0-9]" * count
