"""Forms of answers that take long to be made grammars, beside ordinary requests."""

import asyncio

import httpx
import pytest
from servers import NAME

pytestmark = pytest.mark.model
PLAIN = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CALL = {
    **PLAIN,
    "max_tokens": 40,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}],
    "tool_choice": "required",
}


def hostile(number):
    """Some 200 bytes that keep the gateway busy for about a second."""
    pattern = f"^{number}" + "".join(f"(?=.*{letter})" for letter in "abcdefghijklmnopqrst") + ".*$"
    form = {"name": "slow", "schema": {"type": "string", "pattern": pattern}}
    return {**PLAIN, "response_format": {"type": "json_schema", "json_schema": form}}


def test_ordinary_requests_do_not_wait(server):
    async def ask():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:

            async def status(body):
                return (await client.post("/v1/chat/completions", json=body)).status_code

            assert await status(CALL) == 200  # known from now on
            slow = [asyncio.create_task(status(hostile(number))) for number in range(8)]
            await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
            assert await asyncio.gather(status(PLAIN), status(CALL)) == [200, 200]
            assert not slow[-1].done()
            assert await asyncio.gather(*slow) == [400] * len(slow)

    asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_leads_nowhere_later_is_the_callers_fault(server, stream):
    """Its trial, of a few tokens, passes."""
    fixed = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    grammar = f'start: "{fixed}" T\nT: /bc/ & /bd/'
    body = {"model": NAME, "prompt": "Count:", "grammar": grammar, "max_tokens": 100, "stream": stream}
    answer = server.http.post("/v1/completions", json=body, timeout=60)
    assert answer.status_code == (200 if stream else 400)
    assert '"code":"cannot_continue"' in answer.text
    assert '"type":"invalid_request_error"' in answer.text
