"""The client behind ``headrace chat``: OpenAI's chat completions over HTTP, streamed."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from headrace.errors import HeadraceError, InvalidInput

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 600.0  # a full queue and a long prompt take their time


class ChatClient:
    """Talks to one OpenAI-compatible server.

    Args:
        url: Its address, with or without ``/v1`` at the end.
        api_key: Shown to it, if given.

    Raises:
        InvalidInput: The address is none.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = _base_url(url)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            # A proxy of the environment cannot reach what listens on this machine.
            trust_env=not _is_loopback(httpx.URL(self.url).host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """Names of the models that the server offers.

        Raises:
            HeadraceError: It does not answer, or refuses.
        """
        try:
            response = self._http.get("/v1/models")
            self._check(response)
            return [str(entry["id"]) for entry in response.json()["data"]]
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, TypeError):
            raise HeadraceError(f"what answers at {self.url} is no OpenAI-compatible server") from None

    def stream(self, body: dict[str, Any]) -> Generator[str, None, None]:
        """The pieces of an answer's text, as they come. Closing the iterator makes the server stop.

        Args:
            body: A request of ``/v1/chat/completions``; ``stream`` is added.

        Raises:
            HeadraceError: The server does not answer, refuses, or fails.
        """
        try:
            with self._http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
                if response.is_error:
                    response.read()
                self._check(response)
                yield from _texts(response.iter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _check(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        message = _error_message(response)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            message += " (give the key with --api-key or HEADRACE_API_KEY)"
        raise HeadraceError(f"the server refuses ({response.status_code}): {message}")

    def _unreachable(self, error: httpx.TransportError) -> HeadraceError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return HeadraceError(
                f"no server answers at {self.url}. Start one with `headrace serve`, or name another with --url."
            )
        return HeadraceError(f"the server at {self.url} went away: {error or type(error).__name__}")


def _texts(lines: Iterator[str]) -> Iterator[str]:
    """The text pieces in a stream of server-sent events."""
    for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if not data:
            continue
        try:
            event = json.loads(data)
            if "error" in event:
                raise HeadraceError(f"the server failed: {_message_of(event)}")
            for choice in event.get("choices", ()):
                text = choice.get("delta", {}).get("content")
                if text:
                    yield str(text)
        except (ValueError, AttributeError, TypeError):
            raise HeadraceError("the server's stream is not in OpenAI's form") from None
    raise HeadraceError("the server's answer broke off before its end")


def _base_url(text: str) -> str:
    written = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(written.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        raise InvalidInput(f"not an address: {error}", field="url") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(f"{text!r:.200} is not an address such as http://127.0.0.1:8000", field="url")
    return str(url)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _error_message(response: httpx.Response) -> str:
    try:
        return _message_of(response.json())
    except ValueError:
        text = response.text.strip()
        return (
            f"{response.reason_phrase}, with a web page"
            if text.startswith("<")
            else text[:200] or response.reason_phrase
        )


def _message_of(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
