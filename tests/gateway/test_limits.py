"""Keys, the queue's bound, and CORS."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from servers import NAME

pytestmark = pytest.mark.model
ASK = {"model": NAME, "prompt": "Once", "max_tokens": 2}


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["from-flag", "from-file", "ключ"])
def test_keys_open(small, key):
    headers = {"Authorization": f"Bearer {key}".encode()}
    assert small.http.post("/v1/completions", json=ASK, headers=headers).status_code == 200
    headers = {"Authorization": f"bEARER   {key}".encode()}
    assert small.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer wrong", "Basic from-flag", "from-flag", "Bearer from-flag2", "Bearer \xff"]
)
def test_other_keys_do_not(small, value):
    answer = httpx.get(f"{small.url}/v1/models", headers={"Authorization": value.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_all_but_the_open_routes_are_protected(small):
    document = small.http.get("/openapi.json").json()
    paths = [(method, path) for path, item in document["paths"].items() for method in item]
    assert len(paths) > 9
    with httpx.Client(base_url=small.url) as stranger:
        for method, path in [*paths, ("get", "/nothing"), ("get", "/v1/models/"), ("options", "/v1/models")]:
            answer = stranger.request(method, path.replace("{model}", NAME))
            is_open = path in ("/health", "/ready", "/metrics", "/openapi.json", "/docs", "/")
            assert answer.status_code == (200 if is_open else 401), path


def test_the_official_client_shows_its_key(small):
    assert small.client(api_key="from-file").models.list().data[0].id == NAME
    with pytest.raises(openai.AuthenticationError):
        small.client(api_key="wrong").models.list()


# --- the queue ----------------------------------------------------------------------------------------------------


def test_full_queue_is_a_429_and_the_official_client_waits(small):
    """Two run, nobody may wait."""
    client = small.client(api_key="from-flag")
    body = {"model": NAME, "max_tokens": 50, "extra_body": {"ignore_eos": True}}
    streams = [client.completions.create(prompt=[40 + i], stream=True, **body) for i in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(prompt="c", **body)
    assert caught.value.code == "queue_full"
    assert caught.value.type == "rate_limit_error"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.RateLimitError):
        client.completions.create(prompt="c", stream=True, **body)

    for stream in streams:
        threading.Thread(target=list, args=(stream,)).start()
    patient = small.client(api_key="from-flag", max_retries=20)
    assert patient.completions.create(prompt="c", model=NAME, max_tokens=1).usage.completion_tokens == 1
    small.assert_comes_to_rest()


def test_a_request_larger_than_the_queue_is_served_alone(small):
    small.assert_comes_to_rest()
    answer = small.http.post("/v1/completions", json={**ASK, "n": 5})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 5


def test_refused_requests_cost_no_place(small):
    for _ in range(5):
        small.http.post("/v1/completions", json={**ASK, "max_tokens": 1000})
        small.http.post("/v1/completions", json={**ASK, "temperature": 7})
    assert small.state()["state"]["admitted"] == 0


def test_the_urgent_get_past_a_full_queue(small):
    """Two run, nobody may wait; who is urgent interrupts them, and both go on to their end."""
    body = {**ASK, "max_tokens": 50, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(small.http.post, "/v1/completions", json={**body, "prompt": [40 + i]}) for i in range(2)]
        small.wait(lambda: small.state()["state"]["admitted"] == 2)
        answer = small.http.post("/v1/completions", json={**ASK, "priority": -1})
        assert not any(other.done() for other in others), "others had ended: nothing was full"
        assert answer.status_code == 200
        assert [other.result().json()["usage"]["completion_tokens"] for other in others] == [50] * 2
    small.assert_comes_to_rest()


def test_a_bulk_of_inputs_lets_others_in_and_past(server):
    """Of 150 inputs no more than twice the slots are in the engine at once; a question beside them waits for few."""
    inputs = [[i + 5, *range(10, 30)] for i in range(150)]
    with ThreadPoolExecutor(1) as pool:
        bulk = pool.submit(server.http.post, "/v1/embeddings", json={"model": NAME, "input": inputs})
        server.wait(lambda: server.state()["state"]["admitted"] == 32)
        assert len(server.state()["state"]["waiting"]) <= 32
        answer = server.http.post("/v1/completions", json=ASK)
        assert not bulk.done(), "the bulk had ended"
        assert answer.status_code == 200
        vectors = bulk.result().json()["data"]
    assert [vector["index"] for vector in vectors] == list(range(150))
    alone = server.http.post("/v1/embeddings", json={"model": NAME, "input": inputs[149]}).json()["data"]
    assert vectors[149]["embedding"] == pytest.approx(alone[0]["embedding"], abs=1e-4)
    server.assert_comes_to_rest()


# --- urgency ------------------------------------------------------------------------------------------------------


def test_a_deadline_that_cannot_be_met_is_refused_at_once(server):
    """The engine knows its speed from what it ran: a prompt of 3,000 tokens takes longer than a millisecond."""
    ask = {"model": NAME, "prompt": [7] * 3000, "max_tokens": 1}
    assert server.http.post("/v1/completions", json={**ask, "deadline_ms": 600_000}).status_code == 200
    ask["prompt"] = [8] * 3000
    server.http.post("/v1/completions", json={**ask, "cache_salt": "learn"})
    for stream in (False, True):
        answer = server.http.post("/v1/completions", json={**ask, "deadline_ms": 1, "stream": stream})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "deadline_unmet"
        assert answer.json()["error"]["param"] == "deadline_ms"
        assert int(answer.headers["retry-after"]) >= 1
    server.assert_comes_to_rest()


def test_a_deadline_counts_for_those_that_wait_at_the_gateway(small):
    """Two run, nobody may wait: of four prompts two are not in the engine when their time is over."""
    ask = {"model": NAME, "prompt": [[40 + i] for i in range(4)], "max_tokens": 60, "ignore_eos": True}
    whole = small.http.post("/v1/completions", json=ask)
    assert [choice["finish_reason"] for choice in whole.json()["choices"]] == ["length"] * 4
    answer = small.http.post("/v1/completions", json={**ask, "deadline_ms": 100})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_unmet")
    small.assert_comes_to_rest()


@pytest.mark.parametrize("urgent", [{"priority": -5}, {"service_tier": "priority"}])
def test_an_urgent_request_interrupts_what_fills_the_server(server, urgent):
    """All sixteen slots write long answers, and as many wait; who is urgent is served before any of them ends."""
    body = {"model": NAME, "max_tokens": 80, "ignore_eos": True}
    with ThreadPoolExecutor(32) as pool:
        others = [
            pool.submit(server.http.post, "/v1/completions", json={**body, "prompt": [40 + i]}) for i in range(32)
        ]
        server.wait(lambda: len(server.state()["state"]["waiting"]) == 16, 20)
        ask = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **urgent}
        answer = server.http.post("/v1/chat/completions", json=ask)
        assert not any(other.done() for other in others), "others had ended: nothing was interrupted"
        assert answer.status_code == 200
        assert [other.result().json()["usage"]["completion_tokens"] for other in others] == [80] * 32
    server.assert_comes_to_rest()


# --- CORS ---------------------------------------------------------------------------------------------------------


def test_cors(server, small):
    page = {"Origin": "https://page.example"}
    ask = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = server.http.options("/v1/chat/completions", headers=ask)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["x-request-id"]

    for answer in (
        server.http.post("/v1/completions", json=ASK, headers=page),
        server.http.post("/v1/completions", json={}, headers=page),
        server.http.get("/nothing", headers=page),
    ):
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    stranger = {"Origin": "https://other.example"}
    assert "access-control-allow-origin" not in server.http.get("/health", headers=stranger).headers
    assert server.http.options("/v1/models", headers={**ask, **stranger}).status_code == 400
    assert "access-control-allow-origin" not in small.http.get("/health", headers=page).headers


# --- owners ---------------------------------------------------------------------------------------------------------


def test_owners_of_keys_share_no_prefixes(small):
    prompt = random.Random(7).choices(range(100, 40_000), k=40)

    def cached(key, **more):
        body = {**ASK, "prompt": prompt, **more}
        answer = small.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached("from-flag"), cached("from-flag")] == [0, 32]
    assert [cached("from-file"), cached("from-file")] == [0, 32]
    assert [cached("from-flag", cache_salt="s"), cached("from-flag", cache_salt="s")] == [0, 32]
