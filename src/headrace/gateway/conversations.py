"""Requests of each wire format as the text layer takes them: pure functions from a body to a ``Conversation``."""

from __future__ import annotations

from headrace.api.chat import ChatRequest
from headrace.api.sampling import SamplingFields
from headrace.api.tokenize import TokenizeRequest
from headrace.api.tools import (
    AllowedTools,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    ToolChoiceField,
)
from headrace.text.conversation import AnswerForm, Conversation, Tool, ToolChoice


def chat_conversation(request: ChatRequest) -> Conversation:
    """What ``/v1/chat/completions`` is asked."""
    return Conversation(
        messages=request.template_messages(),
        tools=tuple(_tool(tool) for tool in request.tools or ()),
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        answer=_chat_answer(request),
        reasoning_effort=request.reasoning_effort,
        add_generation_prompt=request.generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        template=request.chat_template_kwargs or {},
    )


def tokenize_conversation(request: TokenizeRequest) -> Conversation:
    """The conversation that ``/tokenize`` is to count the tokens of."""
    return Conversation(
        messages=request.template_messages(),
        tools=tuple(_tool(tool) for tool in request.tools or ()),
        add_generation_prompt=request.generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        template=request.chat_template_kwargs or {},
    )


def answer_form(request: SamplingFields) -> AnswerForm:
    """What the extensions that all requests share ask of the answer."""
    if request.regex is not None:
        return AnswerForm("regex", request.regex, "regex")
    if request.choice is not None:
        return AnswerForm("choice", tuple(request.choice), "choice")
    if request.grammar is not None:
        return AnswerForm("grammar", request.grammar, "grammar")
    return AnswerForm()


def _chat_answer(request: ChatRequest) -> AnswerForm:
    wanted = request.response_format
    if isinstance(wanted, JsonObjectFormat):
        return AnswerForm("json_object")
    if isinstance(wanted, JsonSchemaFormat):
        return AnswerForm("json_schema", wanted.json_schema.schema or {}, "response_format.json_schema.schema")
    return answer_form(request)


def _tool(tool: FunctionTool) -> Tool:
    function = tool.function
    return Tool(function.name, function.description, function.parameters, bool(function.strict))


def _choice(choice: ToolChoiceField | None) -> ToolChoice:
    if isinstance(choice, NamedTool):
        return ToolChoice("required", (choice.function.name,))
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        return ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))
    return ToolChoice(choice or "auto")
