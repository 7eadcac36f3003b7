"""Tools, which of them may be called, and what an answer must look like: parts of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from headrace.api.fields import MAX_LABEL, Request

MAX_TOOLS = 512

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/\-]{1,128}$")]
JsonSchema = dict[str, Any]


class FunctionDefinition(Request, frozen=True):
    """A function that the model may call.

    Attributes:
        name: Of it.
        description: What it does, for the model.
        parameters: JSON Schema of its arguments; left out: it takes none.
        strict: The schema must be enforceable. Else it is enforced as far as that can be done.
    """

    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None


class FunctionTool(Request, frozen=True):
    """A tool. Only functions are supported."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Request, frozen=True):
    """The name of a function."""

    name: str


class NamedTool(Request, frozen=True, tag_field="type", tag="function"):
    """A function that must be called."""

    function: NamedFunction


class AllowedTool(Request, frozen=True):
    """A function that may be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedToolList(Request, frozen=True):
    """Functions that may be called.

    Attributes:
        mode: Whether one of them must be.
        tools: Which ones.
    """

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Request, frozen=True, tag_field="type", tag="allowed_tools"):
    """Only some of the tools may be called."""

    allowed_tools: AllowedToolList


ToolChoiceField = Literal["auto", "none", "required"] | NamedTool | AllowedTools


class TextFormat(Request, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Request, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class NamedSchema(Request, frozen=True):
    """A schema.

    Attributes:
        name: A label.
        description: What the answer is for. Not shown to the model.
        schema: JSON Schema (draft 2020-12).
        strict: Accepted: a schema is always enforced.
    """

    name: Annotated[str, Meta(max_length=MAX_LABEL)]
    schema: JsonSchema | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Request, frozen=True, tag_field="type", tag="json_schema"):
    """A JSON value that a schema allows."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
