"""Embeddings over HTTP: the official client, unmodified, beside streams, in trouble and in a hurry."""

import asyncio
import base64
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from engines import engine_for, request, run
from servers import NAME

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]
TEXTS = ["The river rises in the Alps.", "Stocks fell on Tuesday.", "The stream springs from the mountains."]


@pytest.fixture(scope="module")
def engine(smollm2):
    return engine_for(smollm2, executor="eager", max_batch_tokens=128)


@pytest.fixture
def embed(client):
    def ask(given=TEXTS, **options):
        return client.embeddings.create(model=NAME, input=given, **options)

    return ask


def ids(server, text):
    return server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_the_engines(server, embed, engine, pooling):
    answer = embed(extra_body={"pooling": pooling})
    tokens = [ids(server, text) for text in TEXTS]
    assert (answer.object, answer.model) == ("list", NAME)
    assert [(one.index, one.object) for one in answer.data] == [(i, "embedding") for i in range(3)]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
    for one, prompt in zip(answer.data, tokens, strict=True):
        expected = run(engine, request(0, prompt, pooling=pooling))[0, 0].embedding
        np.testing.assert_allclose(one.embedding, expected / np.linalg.norm(expected), atol=1e-5)
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-6)
    raw = embed(TEXTS[:1], extra_body={"pooling": pooling, "normalize": False}).data[0].embedding
    assert np.linalg.norm(raw) > 2
    np.testing.assert_allclose(raw / np.linalg.norm(raw), answer.data[0].embedding, atol=1e-5)


def test_what_means_the_same_lies_close(embed):
    river, stocks, stream = (np.array(one.embedding) for one in embed().data)
    assert river @ stream > max(river @ stocks, stocks @ stream)


def test_all_forms_of_an_input_are_the_same(server, embed):
    text = TEXTS[0]
    tokens = ids(server, text)
    vectors = [embed(given).data[0].embedding for given in (text, [text], tokens, [tokens])]
    for vector in vectors:
        np.testing.assert_allclose(vector, vectors[0], atol=1e-6)


def test_numbers_and_base64(server, embed):
    """The client asks for Base64 unless told otherwise, and decodes it."""
    numbers = embed(TEXTS[0], encoding_format="float").data[0].embedding
    np.testing.assert_allclose(embed(TEXTS[0], dimensions=len(numbers)).data[0].embedding, numbers, atol=1e-6)
    body = {"model": NAME, "input": TEXTS[0], "encoding_format": "base64"}
    (one,) = server.http.post("/v1/embeddings", json=body).json()["data"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), numbers, atol=1e-6)


def test_many_inputs_beside_streams(server, client, embed, complete):
    """Neither disturbs the other: answers are those of a server that has nothing else to do."""
    alone, vectors = complete(max_tokens=24).choices[0].text, np.array([one.embedding for one in embed().data])
    with ThreadPoolExecutor(6) as pool:
        many = [pool.submit(embed, TEXTS * 20) for _ in range(2)]
        streams = [pool.submit(lambda: list(complete(max_tokens=24, stream=True))) for _ in range(4)]
        for chunks in (stream.result() for stream in streams):
            assert "".join(chunk.choices[0].text for chunk in chunks) == alone
        for answer in (one.result() for one in many):
            found = np.array([one.embedding for one in answer.data])
            np.testing.assert_allclose(found, np.tile(vectors, (20, 1)), atol=1e-5)


def test_async_client(server):
    async def ask():
        async with server.async_client() as client:
            answers = (client.embeddings.create(model=NAME, input=text) for text in TEXTS)
            return [answer.data[0].embedding for answer in await asyncio.gather(*answers)]

    assert {len(vector) for vector in asyncio.run(ask())} == {576}


def test_errors_of_the_client(embed, client):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(["Hi", ""])
    assert caught.value.param == "input[1]"
    with pytest.raises(openai.BadRequestError) as caught:
        embed("Hi", dimensions=64)
    assert caught.value.param == "dimensions"
    assert "576" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="Hi")


def test_a_client_that_goes_away(server):
    aborted, tokens = (server.metrics()[f"headrace_{x}_total"] for x in ("requests_aborted", "prompt_tokens"))
    data = json.dumps({"model": NAME, "input": [[30 + i] * 2000 for i in range(8)]}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + data)
        server.wait(lambda: server.state()["state"]["running"])
    server.assert_comes_to_rest(10)
    after = server.metrics()
    assert after["headrace_requests_aborted_total"] == aborted + 8
    assert after["headrace_prompt_tokens_total"] < tokens + 16_000, "all was computed"


def test_a_deadline_that_cannot_be_met(server, embed):
    embed([[31] * 800])  # the engine learns its speed
    with pytest.raises(openai.InternalServerError) as caught:
        embed([[32] * 800], extra_body={"deadline_ms": 1})
    assert (caught.value.status_code, caught.value.code) == (503, "deadline_unmet")


def test_metrics(server, embed):
    before = server.metrics()
    count = embed().usage.prompt_tokens
    server.assert_comes_to_rest()
    after = server.metrics()

    def gained(*name):
        key = name if len(name) > 1 else name[0]
        return after[key] - before.get(key, 0)

    assert gained("headrace_prompt_tokens_total") == count
    assert gained("headrace_generation_tokens_total") == 0
    assert gained("headrace_samples_finished_total", "stop") == 3
    assert gained("headrace_http_requests_total", "/v1/embeddings", "200") == 1
    assert gained("headrace_time_to_first_token_seconds_count") == 0
    assert gained("headrace_request_prefill_seconds_count") == 3
    assert gained("headrace_request_end_to_end_seconds_count") == 3
