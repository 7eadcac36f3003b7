"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode
from headrace.api.errors import unavailable
from headrace.api.parsing import parse_detokenize, parse_tokenize
from headrace.api.server_answers import Detokenized, Tokenized
from headrace.api.tokenize import TokenizeRequest
from headrace.gateway.conversations import tokenize_conversation
from headrace.gateway.http import json_response
from headrace.gateway.opening import aside, opened
from headrace.gateway.services import Services
from headrace.text.prompt import token_prompt


class Tokenize:
    """``/tokenize``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer with the token ids of a text or a conversation."""
        services = self._services
        opening = await opened(http, services, parse_tokenize)
        info = services.replica.info
        if info is None:
            raise unavailable("The model is being loaded; try again soon.", retry_after_s=2, code="model_loading")
        tokens, texts = await aside(opening.size, self._tokens, opening.request)
        answer = Tokenized(count=len(tokens), max_model_len=info.context_length, tokens=tokens, token_strs=texts)
        return json_response(encode(answer), opening.headers())

    def _tokens(self, request: TokenizeRequest) -> tuple[list[int], list[str] | UnsetType]:
        tokens = self._ids(request)
        text = self._services.tokenizer.token_text
        return tokens, [text(token) for token in tokens] if request.return_token_strs else UNSET

    def _ids(self, request: TokenizeRequest) -> list[int]:
        tokenizer = self._services.tokenizer
        if request.messages is None:
            return tokenizer.encode(request.prompt or "", add_special_tokens=request.special_tokens)
        prompt = self._services.text.prompt(tokenize_conversation(request))
        if request.special_tokens:
            return tokenizer.encode(prompt.text or "", add_special_tokens=True)
        return list(prompt.tokens)


class Detokenize:
    """``/detokenize``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer with the text of token ids, special tokens included."""
        services = self._services
        opening = await opened(http, services, parse_detokenize)
        text = await aside(opening.size, self._text, opening.request.tokens)
        return json_response(encode(Detokenized(text)), opening.headers())

    def _text(self, tokens: list[int]) -> str:
        tokenizer = self._services.tokenizer
        if tokens:
            token_prompt(tokenizer, tokens, field="tokens")
        return tokenizer.decode(tokens, skip_special_tokens=False)
