"""Rules between the fields of Responses requests."""

from __future__ import annotations

from headrace.api.errors import bad_request
from headrace.api.responses.request import (
    LOGPROBS,
    AllowedFunctions,
    ChosenFunction,
    FlatSchemaFormat,
    InputTokensRequest,
    PromptFields,
    ResponsesRequest,
)
from headrace.api.rules import check_choice, check_refused_within, check_schema, check_tools


def check_response(request: ResponsesRequest) -> None:
    """Check ``/v1/responses``; raises ``ApiError`` (400)."""
    _check_prompt(request)
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream: true.", param="stream_options")
    if request.top_logprobs and not request.wants(LOGPROBS):
        raise bad_request(f"top_logprobs needs {LOGPROBS!r} in include.", param="top_logprobs")


def check_input_tokens(request: InputTokensRequest) -> None:
    """Check ``/v1/responses/input_tokens``; raises ``ApiError`` (400)."""
    _check_prompt(request)


def _check_prompt(request: PromptFields) -> None:
    check_refused_within(request)
    if request.input is None and request.previous_response_id is None:
        raise bad_request(
            "Give input, or previous_response_id.", param="input", code="missing_required_parameter"
        )  # fmt: skip
    if request.input == [] and request.previous_response_id is None:
        raise bad_request("The input is empty.", param="input")
    _check_tools(request)
    form = None if request.text is None else request.text.format
    if isinstance(form, FlatSchemaFormat):
        check_schema(form.schema, "text.format.schema")


def _check_tools(request: PromptFields) -> None:
    tools, choice = request.tools or [], request.tool_choice
    names = [tool.name for tool in tools]
    check_tools(
        names, [tool.parameters for tool in tools], name_path="tools[{i}].name", schema_path="tools[{i}].parameters"
    )
    if not isinstance(choice, ChosenFunction | AllowedFunctions) and choice != "required":
        return
    wanted = []
    if isinstance(choice, ChosenFunction):
        wanted = [("tool_choice.name", choice.name)]
    elif isinstance(choice, AllowedFunctions):
        wanted = [(f"tool_choice.tools[{i}].name", tool.name) for i, tool in enumerate(choice.tools)]
    check_choice(names, wanted, is_free=False)
