"""``/tokenize`` and ``/detokenize``, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from headrace.api.common import ModelNameOrDefault
from headrace.api.fields import Request, TokenId
from headrace.api.messages import Message, template_messages
from headrace.api.tools import MAX_TOOLS, FunctionTool


class TokenizeRequest(Request, frozen=True):
    """The body of ``/tokenize``: a prompt, or messages that the chat template turns into one."""

    prompt: Annotated[str | None, Meta(description="The text.", examples=["Hello there"])] = None
    messages: Annotated[
        Annotated[list[Message], Meta(min_length=1)] | None, Meta(description="A conversation, in place of prompt.")
    ] = None
    model: ModelNameOrDefault = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(
            description="Add the tokens that the tokenizer adds to a text. Default true for prompt, false for messages."
        ),
    ] = None
    return_token_strs: Annotated[bool | None, Meta(description="Return each token's text too.")] = None
    add_generation_prompt: Annotated[
        bool | None, Meta(description="For messages. Default true, unless continuing.")
    ] = None
    continue_final_message: Annotated[bool | None, Meta(description="For messages.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="Variables for the chat template.")] = None
    tools: Annotated[
        Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="For messages. Functions that the model may call."),
    ] = None

    @property
    def special_tokens(self) -> bool:
        """Whether to add the tokenizer's special tokens: templates write their own."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    @property
    def generation_prompt(self) -> bool:
        """Whether the prompt ends with the head of an answer."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    def template_messages(self, *, developer_as: str = "system") -> list[dict[str, Any]]:
        """The messages as plain dictionaries (empty for a prompt); see ``messages.template_messages``."""
        return template_messages(self.messages or [], developer_as=developer_as)


class DetokenizeRequest(Request, frozen=True):
    """The body of ``/detokenize``."""

    tokens: Annotated[list[TokenId], Meta(description="Token ids.", examples=[[19556, 665]])]
    model: ModelNameOrDefault = None
