"""``Conversation``: a chat request as the text layer takes it, whichever wire format it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: Of it.
        description: What it does, for the model.
        parameters: JSON Schema of its arguments; None: it takes none.
        strict: The schema must be enforced; else it is as far as that can be done.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def plain(self) -> dict[str, Any]:
        """The form of OpenAI's ``tools``, which chat templates take."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may be called, and whether one must be.

    Attributes:
        mode: ``auto``: the model decides; ``none``: no tool; ``required``: at least one.
        names: Of those that may be called; None: all.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer must look like.

    Attributes:
        kind: ``text``: anything; ``json_object``: a JSON object; ``json_schema``; ``regex``: a regular expression
            that the whole answer matches; ``choice``: one of some texts; ``grammar``: in Lark or GBNF.
        value: The schema, expression, texts or grammar.
        field: What the caller calls it, for errors.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    value: Any = None
    field: str = "response_format"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to be answered, and how.

    Attributes:
        messages: In OpenAI's form, as plain dictionaries.
        tools: That the model may call.
        tool_choice: Which of them.
        parallel_tool_calls: Several may be called in one answer.
        answer: What the answer must look like.
        reasoning_effort: How long the model is to reason, for its template; None: as it likes.
        reasoning_budget: Most tokens of reasoning, for its template; None: as it likes.
        add_generation_prompt: End the prompt with the head of the answer.
        continue_final_message: Let the model continue the last message.
        template: Further variables for the chat template.
        tool_field: What the caller calls the schema of tool ``{i}``, for errors.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    answer: AnswerForm = AnswerForm()
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)
    tool_field: str = "tools[{i}].function.parameters"

    @property
    def is_free(self) -> bool:
        """Whether the answer may be any text, and tools need not be called."""
        return self.answer.kind == "text" and self.tool_choice.mode != "required"

    @property
    def form_is_idle(self) -> bool:
        """Whether a form is asked of an answer that cannot come, because a call must."""
        return self.answer.kind != "text" and self.tool_choice.mode == "required"

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is asked of the answer's form."""
        return self.answer.kind == "text" and not self.tools

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids of the calls that were made in it."""
        calls = [call for message in self.messages for call in message.get("tool_calls") or ()]
        return frozenset(call["id"] for call in calls if isinstance(call.get("id"), str))

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the tools' arguments."""
        return {tool.name: tool.parameters for tool in self.tools if tool.parameters is not None}

    @property
    def callable_tools(self) -> tuple[tuple[int, Tool], ...]:
        """The tools that may be called, each with its place in ``tools``."""
        names, mode = self.tool_choice.names, self.tool_choice.mode
        if mode == "none":
            return ()
        return tuple((i, tool) for i, tool in enumerate(self.tools) if names is None or tool.name in names)
