"""From requests of the Messages API to a ``Conversation``: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.anthropic.blocks import (
    AssistantTurn,
    RedactedThinkingBlockParam,
    SystemContent,
    SystemTurn,
    TextBlockParam,
    ThinkingBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
    Turn,
    UserTurn,
)
from headrace.api.anthropic.message import call_id
from headrace.api.anthropic.request import (
    AnthropicToolChoice,
    AnyChoice,
    ConversationFields,
    NoChoice,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceByName,
)
from headrace.text.conversation import AnswerForm, Conversation, Tool, ToolChoice

USUAL_EFFORT = "medium"


def message_conversation(request: ConversationFields) -> Conversation:
    """What is to be answered. A last message of the assistant is continued."""
    system = [] if not request.system else [{"role": "system", "content": text_of(request.system)}]
    choice, thinking = request.tool_choice, request.thinking
    prefilled = isinstance(request.messages[-1], AssistantTurn)
    return Conversation(
        messages=[*system, *(message for turn in request.messages for message in _messages(turn))],
        tools=tuple(Tool(t.name, t.description, t.input_schema, bool(t.strict)) for t in request.tools or ()),
        tool_choice=_choice(choice),
        parallel_tool_calls=isinstance(choice, NoChoice | None) or not choice.disable_parallel_tool_use,
        answer=_form(request),
        reasoning_effort=_effort(request),
        reasoning_budget=thinking.budget_tokens if isinstance(thinking, ThinkingEnabled) else None,
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
        tool_field="tools[{i}].input_schema",
    )


def names(request: ConversationFields) -> dict[str, str]:
    """What the caller calls fields of the conversation."""
    config = request.output_config
    return {"reasoning_effort": "thinking" if config is None or config.effort is None else "output_config.effort"}


def text_of(content: SystemContent | Sequence[TextBlockParam]) -> str:
    """The text of a content; blocks are joined by a newline."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _messages(turn: Turn) -> list[dict[str, Any]]:
    match turn:
        case SystemTurn():
            return [{"role": "system", "content": text_of(turn.content)}]
        case AssistantTurn():
            return [_answer(turn)]
        case UserTurn(content=str(text)):
            return [{"role": "user", "content": text}]
        case UserTurn():
            results = [_result(block) for block in turn.content if isinstance(block, ToolResultBlockParam)]
            texts = [block for block in turn.content if isinstance(block, TextBlockParam)]
            return [*results, *([{"role": "user", "content": text_of(texts)}] if texts else [])]


def _answer(turn: AssistantTurn) -> dict[str, Any]:
    blocks = [TextBlockParam(text=turn.content)] if isinstance(turn.content, str) else turn.content
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block:
            case TextBlockParam():
                texts.append(block)
            case ThinkingBlockParam():
                thoughts.append(block.thinking)
            case ToolUseBlockParam():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": call_id(block.id), "type": "function", "function": function})
            case RedactedThinkingBlockParam():
                pass
    message["content"] = text_of(texts)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: ToolResultBlockParam) -> dict[str, Any]:
    text = text_of(block.content or "")
    # No chat template has a place for it, so that it is said.
    said = f"Error: {text}" if block.is_error and not text.lower().startswith("error") else text
    return {"role": "tool", "tool_call_id": call_id(block.tool_use_id), "content": said}


def _choice(choice: AnthropicToolChoice | None) -> ToolChoice:
    match choice:
        case AnyChoice():
            return ToolChoice("required")
        case ToolChoiceByName():
            return ToolChoice("required", (choice.name,))
        case NoChoice():
            return ToolChoice("none")
        case _:
            return ToolChoice()


def _form(request: ConversationFields) -> AnswerForm:
    config = request.output_config
    if config is not None and config.format is not None:
        return AnswerForm("json_schema", config.format.schema, "output_config.format.schema")
    if request.output_format is not None:
        return AnswerForm("json_schema", request.output_format.schema, "output_format.schema")
    return AnswerForm()


def _effort(request: ConversationFields) -> str | None:
    """How long the model is to reason; None: as it likes."""
    if isinstance(request.thinking, ThinkingDisabled):
        return "none"
    given = None if request.output_config is None else request.output_config.effort
    return given or (USUAL_EFFORT if isinstance(request.thinking, ThinkingEnabled) else None)
