"""The Responses and Messages APIs when clients go away, the engine is lost, and the store is full."""

import asyncio

import anthropic
import httpx
import openai
import pytest
from official_types import RESPONSE_EVENT, events, strictly
from servers import NAME, running

pytestmark = pytest.mark.model
ENDLESS = {"type": "string", "minLength": 2000}
ASK = {
    "model": NAME,
    "input": "Hi",
    "temperature": 0,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": ENDLESS}},
}
SAY = {
    "model": NAME,
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "Hi"}],
    "output_config": {"format": {"type": "json_schema", "schema": ENDLESS}},
}
STORE_BYTES = 60_000


@pytest.fixture(scope="module")
def troubled(smollm2, tmp_path_factory):
    """A server whose engine may be lost, with keys of two tenants and a small store."""
    flags = ("--kv-memory", "64MiB", "--max-running", "16", "--response-store", str(STORE_BYTES))
    flags += ("--api-key", "one", "--api-key", "two")
    with running(smollm2, tmp_path_factory.mktemp("troubled"), *flags) as server:
        server.http.headers["Authorization"] = "Bearer one"
        yield server


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", ASK), ("/v1/messages", SAY)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away(troubled, path, body, stream):
    before = troubled.metrics()

    async def leave():
        async with httpx.AsyncClient(base_url=troubled.url, headers={"Authorization": "Bearer one"}) as client:
            request = asyncio.create_task(client.post(path, json={**body, "stream": stream}, timeout=60))
            await _until_running(troubled, 1)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(leave())
    troubled.assert_comes_to_rest(10)
    after = troubled.metrics()
    assert after["headrace_requests_aborted_total"] == before["headrace_requests_aborted_total"] + 1
    assert after["headrace_stored_responses"] == before["headrace_stored_responses"]


async def _until_running(server, count):
    async with asyncio.timeout(30):
        while server.metrics()["headrace_requests_running"] < count:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


def test_tenants_do_not_see_each_other(troubled):
    one, two = (troubled.client(api_key=key) for key in ("one", "two"))
    made = one.responses.create(model=NAME, input="Hi", max_output_tokens=2)
    assert one.responses.retrieve(made.id).id == made.id
    for call in (two.responses.retrieve, two.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        two.responses.create(model=NAME, input="And?", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        two.responses.create(model=NAME, input=[{"type": "item_reference", "id": made.output[0].id}])
    assert caught.value.code == "item_not_found"


def test_the_store_stays_within_its_bounds(troubled):
    async def fill():
        async with troubled.async_client(api_key="one") as client:

            async def chain(i):
                previous = None
                for _ in range(2):
                    answer = await client.responses.create(
                        model=NAME,
                        input=f"{i}",
                        max_output_tokens=1,
                        previous_response_id=previous,
                        metadata={str(k): "x" * 500 for k in range(16)},
                    )
                    previous = answer.id
                return previous

            return await asyncio.gather(*(chain(i) for i in range(8)), return_exceptions=True)

    ends = asyncio.run(fill())
    # What was used last is there; what was pushed out is refused, and nothing else happens.
    assert all(isinstance(end, str) or end.code == "previous_response_not_found" for end in ends)
    values = troubled.metrics()
    assert 0 < values["headrace_stored_responses_bytes"] <= STORE_BYTES
    assert values["headrace_stored_responses"] < 16
    last = troubled.client(api_key="one").responses.create(model=NAME, input="Hi", max_output_tokens=1)
    assert troubled.client(api_key="one").responses.retrieve(last.id).id == last.id
    troubled.assert_comes_to_rest()


def test_an_engine_that_is_lost(troubled):
    """Streams end with an event of their own; answers that have not begun get a status."""
    ends = []

    async def respond():
        async with troubled.async_client(api_key="one") as client:
            stream = await client.responses.create(stream=True, **ASK)
            ends.append([event async for event in stream][-1])

    async def say():
        async with anthropic.AsyncAnthropic(api_key="one", base_url=troubled.url, max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                async for _ in await client.messages.create(stream=True, **SAY):
                    pass
            ends.append(caught.value.body)

    async def wait_whole():
        async with troubled.async_client(api_key="one") as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.responses.create(**ASK)
            ends.append(caught.value.code)

    async def strike():
        await _until_running(troubled, 3)
        troubled.replica().kill()

    async def all_of_it():
        await asyncio.wait_for(asyncio.gather(respond(), say(), wait_whole(), strike()), 60)

    asyncio.run(all_of_it())
    (failed,) = [end for end in ends if getattr(end, "type", None) == "response.failed"]
    assert failed.response.status == "failed"
    assert failed.response.error.code == "server_error"
    assert failed.response.output[0].status == "incomplete"
    (error,) = [end for end in ends if isinstance(end, dict)]
    assert (error["type"], error["error"]["type"], error["error"]["code"]) == (
        "error",
        "overloaded_error",
        "engine_unavailable",
    )
    assert "engine_unavailable" in ends
    stored = troubled.client(api_key="one").responses.retrieve(failed.response.id)
    assert stored.status == "failed"
    troubled.wait_ready()
    with troubled.http.stream("POST", "/v1/responses", json={**ASK, "stream": True, "max_output_tokens": 3}) as answer:
        found = [strictly(RESPONSE_EVENT, data) for _, data in events(answer.iter_lines())]
    assert found[-1].type == "response.incomplete"
    assert found[-1].response.usage.output_tokens == 3
    troubled.assert_comes_to_rest()
