"""From items of the Responses API to a ``Conversation``, and to the form in which items are listed: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from headrace.api.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    ItemReference,
    ItemStatus,
    MessageContent,
    MessageItem,
    OutputTextPart,
    ReasoningItem,
    RefusalOutputPart,
)
from headrace.api.responses.output import (
    ListedFunctionOutput,
    ListedItem,
    ListedMessage,
    ListedText,
    OutputFunctionCall,
    OutputMessage,
    OutputReasoning,
    OutputReasoningText,
    OutputRefusal,
    OutputSummaryText,
    OutputText,
    new_item_id,
    unsealed,
)
from headrace.api.responses.request import (
    AllowedFunctions,
    ChosenFunction,
    FlatSchemaFormat,
    PromptFields,
    ResponseToolChoice,
)
from headrace.api.tools import JsonObjectFormat
from headrace.errors import InvalidInput
from headrace.text.conversation import AnswerForm, Conversation, Tool, ToolChoice

NAMES = {"messages": "input", "reasoning_effort": "reasoning.effort"}
"""What the caller calls fields of the conversation."""


def response_conversation(request: PromptFields, items: Sequence[InputItem]) -> Conversation:
    """What is to be answered.

    Args:
        request: What was asked.
        items: Those of earlier responses and of the request, without references.
    """
    instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    return Conversation(
        messages=_one_system_message([*instructions, *messages_of(items)]),
        tools=tuple(Tool(t.name, t.description, t.parameters, bool(t.strict)) for t in request.tools or ()),
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        answer=_form(request),
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        tool_field="tools[{i}].parameters",
    )


def own_items(request: PromptFields) -> list[InputItem]:
    """The items that a request brings; a text is a message of the user."""
    if isinstance(request.input, str):
        return [MessageItem(role="user", content=request.input)]
    return list(request.input or ())


def messages_of(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Items as the messages of a chat.

    What the model made in one go is one message: reasoning, then text, then calls.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
        match item:
            case ReasoningItem():
                messages.append({"role": "assistant", "content": "", "reasoning_content": reasoning_of(item)})
            case MessageItem(role="assistant") if last and not last["content"] and "tool_calls" not in last:
                last["content"] = text_of(item.content)
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                messages.append({"role": role, "content": text_of(item.content)})
            case FunctionCallItem():
                if not last:
                    last = {"role": "assistant", "content": ""}
                    messages.append(last)
                function = {"name": item.name, "arguments": item.arguments}
                last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            case FunctionOutputItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
    return messages


def text_of(content: MessageContent | Any) -> str:
    """The text of a message or of what a function returned; parts are joined by a newline."""
    if isinstance(content, str):
        return content
    return "\n".join(part.refusal if isinstance(part, RefusalOutputPart) else part.text for part in content)


def reasoning_of(item: ReasoningItem) -> str:
    """The reasoning that an item holds: its content, or else what is sealed in it, or else its summary.

    Raises:
        InvalidInput: It was sealed by another server.
    """
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content is not None:
        text = unsealed(item.encrypted_content)
        if text is None:
            message = "encrypted_content is not of this server: leave the item out"
            raise InvalidInput(message, field="input", code="unreadable_reasoning")
        return text
    return "\n".join(part.text for part in item.summary or ())


def listed(item: InputItem) -> ListedItem:
    """An item in the form in which items are listed: with an id, and its content in parts."""
    status: ItemStatus = getattr(item, "status", None) or "completed"
    match item:
        case MessageItem(role="assistant"):
            return OutputMessage(id=item.id or new_item_id("msg"), status=status, content=_output_parts(item.content))
        case MessageItem():
            parts = [ListedText(text=text) for text in _texts(item.content)]
            identifier = item.id or new_item_id("msg")
            return ListedMessage(id=identifier, status=status, role=cast("Any", item.role), content=parts)
        case ReasoningItem():
            return OutputReasoning(
                id=item.id or new_item_id("rs"),
                status=status,
                summary=[OutputSummaryText(text=part.text) for part in item.summary or ()],
                content=[OutputReasoningText(text=part.text) for part in item.content or ()],
                encrypted_content=item.encrypted_content,
            )
        case FunctionCallItem():
            return OutputFunctionCall(
                id=item.id or new_item_id("fc"),
                status=status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case FunctionOutputItem():
            output = item.output
            return ListedFunctionOutput(
                id=item.id or new_item_id("fco"),
                status=status,
                call_id=item.call_id,
                output=output if isinstance(output, str) else [ListedText(text=part.text) for part in output],
            )
        case ItemReference():
            raise TypeError("a reference is no item")


def _texts(content: MessageContent) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.refusal if isinstance(part, RefusalOutputPart) else part.text for part in content]


def _output_parts(content: MessageContent) -> list[OutputText | OutputRefusal]:
    if isinstance(content, str):
        return [OutputText(text=content)]
    return [
        OutputRefusal(refusal=part.refusal)
        if isinstance(part, RefusalOutputPart)
        else OutputText(
            text=part.text, annotations=(part.annotations or []) if isinstance(part, OutputTextPart) else []
        )
        for part in content
    ]


def _one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system messages at the beginning made one: many templates take no more."""
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]


def _form(request: PromptFields) -> AnswerForm:
    wanted = None if request.text is None else request.text.format
    if isinstance(wanted, JsonObjectFormat):
        return AnswerForm("json_object", field="text.format")
    if isinstance(wanted, FlatSchemaFormat):
        return AnswerForm("json_schema", wanted.schema, "text.format.schema")
    return AnswerForm()


def _choice(choice: ResponseToolChoice | None) -> ToolChoice:
    if isinstance(choice, ChosenFunction):
        return ToolChoice("required", (choice.name,))
    if isinstance(choice, AllowedFunctions):
        return ToolChoice(choice.mode, tuple(tool.name for tool in choice.tools))
    return ToolChoice(choice or "auto")
