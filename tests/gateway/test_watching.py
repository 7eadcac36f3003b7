"""What an operator sees: ids, traces, logs, metrics, models, documentation."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from servers import NAME

from headrace.engine.messages import EngineStats
from headrace.engine.report import pack
from headrace.gateway.metrics import Metrics

pytestmark = pytest.mark.model
ASK = {"model": NAME, "prompt": "Once", "max_tokens": 2}
MARKER = "xyzzy-plugh-4711"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def log_lines(server):
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def log_line(server, request_id):
    server.wait(lambda: request_id in server.log.read_text(), 5)
    (line,) = [line for line in log_lines(server) if line.get("request_id") == request_id]
    return line


# --- ids and traces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/health", {}, 200),
        ("GET", "/metrics", {}, 200),
        ("GET", "/docs", {}, 200),
        ("GET", "/", {}, 307),
        ("POST", "/v1/completions", {"json": ASK}, 200),
        ("POST", "/v1/completions", {"json": {**ASK, "stream": True}}, 200),
        ("POST", "/v1/completions", {"json": {}}, 400),
        ("GET", "/nothing", {}, 404),
        ("GET", "/v1/completions", {}, 405),
        (
            "POST",
            "/v1/completions",
            {"content": b"a" * 9_000_000, "headers": {"Content-Type": "application/json"}},
            413,
        ),
        ("POST", "/v1/completions", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ],
)
def test_every_answer_has_the_callers_id(server, method, path, options, status):
    given = {"X-Request-Id": f"mine-{status}.{method}:_", "traceparent": PARENT}
    options = {**options, "headers": {**options.get("headers", {}), **given}}
    answer = server.http.request(method, path, **options)
    assert answer.status_code == status
    assert answer.headers["x-request-id"] == given["X-Request-Id"]
    assert answer.headers["traceparent"].split("-")[1] == PARENT.split("-")[1]


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "é", "a" * 129, "<script>", "{}"])
def test_insane_ids_are_replaced(server, value):
    answer = server.http.get("/health", headers={"X-Request-Id": value.encode()})
    assert re.fullmatch(r"req-[0-9a-f]{24}", answer.headers["x-request-id"])


def test_new_ids_differ(server):
    ids = {server.http.get("/health").headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5


def test_traceparent_is_continued(server):
    answer = server.http.get("/health", headers={"traceparent": PARENT, "X-Request-Id": "traced-1"})
    version, trace, span, flags = answer.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", "0af7651916cd43dd8448eb211c80319c", "01")
    assert span != "b7ad6b7169203331"
    line = log_line(server, "traced-1")
    assert (line["trace_id"], line["parent_id"], line["span_id"]) == (trace, "b7ad6b7169203331", span)
    newer = f"cc-{PARENT[3:]}-what-the-future-will-be-like"
    assert trace in server.http.get("/health", headers={"traceparent": newer}).headers["traceparent"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT + "-more",
        PARENT[:-1],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        PARENT.replace("-", "_"),
    ],
)
def test_malformed_traceparent_starts_a_new_trace(server, value):
    answer = server.http.get("/health", headers={"traceparent": value})
    version, trace, span, flags = answer.headers["traceparent"].split("-")
    assert trace != PARENT.split("-")[1]
    assert re.fullmatch(r"[0-9a-f]{32}", trace)
    assert re.fullmatch(r"[0-9a-f]{16}", span)
    assert (version, flags) == ("00", "00")


# --- logs ---------------------------------------------------------------------------------------------------------


def test_logs_are_json_and_hold_no_text(server, chat):
    answer = chat(f"Repeat after me: {MARKER} {MARKER}", max_tokens=24, user=MARKER)
    given = {"X-Request-Id": "logged-1"}
    body = {"model": NAME, "messages": [{"role": "user", "content": f"Say {MARKER}."}], "max_tokens": 3}
    assert server.http.post("/v1/chat/completions", json=body, headers=given).status_code == 200
    for bad in (
        {**body, "temperature": MARKER},
        {**body, MARKER: 1},
        {**body, "messages": [{"role": MARKER}]},
        {"model": MARKER, "prompt": MARKER},
    ):
        assert server.http.post("/v1/chat/completions", json=bad).status_code in (400, 404)
    server.http.get(f"/{MARKER}?q={MARKER}")
    line = log_line(server, "logged-1")
    assert line["path"] == "/v1/chat/completions"
    assert line["status"] == 200
    assert line["output_tokens"] == 3
    assert line["prompt_tokens"] > 10
    assert line["finish"] == "length"
    assert 0 < line["ttft_seconds"] < line["seconds"]
    for line in log_lines(server):
        assert {"time", "level", "logger", "message"} <= set(line)
    text = server.log.read_text()
    assert MARKER not in text
    words = answer.choices[0].message.content.split()
    assert len(words) < 3 or " ".join(words[:3]) not in text


def test_the_log_says_what_was_started(server):
    (line,) = [line for line in log_lines(server) if line["message"] == "ready"]
    replica = line["replica"]
    assert replica["model"] == NAME
    assert replica["executor"] == "eager float32"
    assert replica["threads"] == 1
    assert replica["kv_tokens"] >= replica["context_length"]


# --- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_have_units_and_help(server):
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert len(families) > 15
    for name, family in families.items():
        assert name.startswith("headrace_")
        assert family.documentation
        if family.type == "histogram":
            assert name.endswith("_seconds")
        if name.endswith("_ratio"):
            assert all(0 <= sample.value <= 1 for sample in family.samples)


def test_metrics_count_what_happens(server, complete):
    prompt = list(range(500, 600))
    before = server.metrics()
    for _ in range(2):
        answer = complete(prompt, max_tokens=6, extra_body={"ignore_eos": True})
    assert answer.usage.prompt_tokens_details.cached_tokens == 96  # whole pages of 16
    server.assert_comes_to_rest()
    after = server.metrics()

    def gained(*name):
        key = name if len(name) > 1 else name[0]
        return after[key] - before.get(key, 0)

    assert gained("headrace_prompt_tokens_total") == 200
    assert gained("headrace_prefix_cache_hit_tokens_total") == 96
    assert gained("headrace_generation_tokens_total") == 12
    assert gained("headrace_samples_finished_total", "length") == 2
    assert gained("headrace_http_requests_total", "/v1/completions", "200") == 2
    assert gained("headrace_time_to_first_token_seconds_count") == 2
    assert gained("headrace_request_end_to_end_seconds_count") == 2
    assert gained("headrace_request_queue_seconds_count") == 2
    assert gained("headrace_request_prefill_seconds_count") == 2
    assert gained("headrace_inter_token_latency_seconds_count") == 10
    assert gained("headrace_step_seconds_count") >= 12
    step, overhead, host = (gained(f"headrace_step_{name}seconds_sum") for name in ("", "overhead_", "host_"))
    assert 0 < overhead < step
    assert 0 < host < step
    ttft, gap, whole = (
        gained(f"headrace_{name}_seconds_sum")
        for name in ("time_to_first_token", "inter_token_latency", "request_end_to_end")
    )
    assert 0 < ttft < whole
    assert ttft + gap == pytest.approx(whole, rel=0.2)
    assert after["headrace_engine_up"] == 1
    assert (
        sum(after["headrace_kv_pages", state] for state in ("used", "cached", "free")) == 273
    )  # 192 MiB of pages of 720 KiB


def test_metrics_take_what_constraints_did_from_reports():
    metrics, before = Metrics(), EngineStats(masked_tokens=2, forced_tokens=3)
    metrics.on_report(before, pack([], EngineStats(masked_tokens=9, forced_tokens=14)))
    lines = metrics.render().decode().splitlines()
    assert {"headrace_masked_tokens_total 7.0", "headrace_forced_tokens_total 11.0"} <= set(lines)


def test_unknown_paths_do_not_grow_the_metrics(server):
    for i in range(5):
        server.http.get(f"/nothing/{i}")
        server.http.get(f"/v1/models/nothing-{i}")
    text = server.http.get("/metrics").text
    assert "nothing" not in text


# --- state, documentation, models ---------------------------------------------------------------------------------


def test_debug_state_shows_a_running_request_without_its_text(server, chat):
    stream = chat(f"Tell me of {MARKER}.", max_tokens=500, stream=True)
    next(iter(stream))
    answer = server.http.get("/debug/state").text
    state = json.loads(answer)["state"]
    stream.close()
    (running,) = state["running"]
    assert running["prompt_tokens"] > 10
    assert running["pages"] >= 1
    assert {"waiting", "pages", "tree", "admitted", "restarts"} <= set(state)
    assert MARKER not in answer
    server.assert_comes_to_rest()


def test_documentation(server):
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert server.url in page.text
    assert server.http.get("/").headers["location"] == "/docs"
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    routes = {"/v1/models", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/metrics"}
    assert routes | {"/health", "/ready", "/debug/state"} <= set(document["paths"])


def test_tokenize_and_detokenize(server, complete):
    def post(path, **body):
        answer = server.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    text = "Once upon a time, naïve 東京 🦊"
    tokens = post("/tokenize", prompt=text, model=NAME)["tokens"]
    assert post("/detokenize", tokens=tokens)["prompt"] == text
    assert complete(text, extra_body={"return_token_ids": True}).choices[0].prompt_token_ids == tokens
    messages = [{"role": "user", "content": "Hi"}]
    chat = post("/tokenize", messages=messages, return_token_strs=True)
    assert chat["count"] == len(chat["tokens"]) == len(chat["token_strs"])
    assert chat["token_strs"][0] == "<|im_start|>"
    asked = {"model": NAME, "messages": messages, "max_tokens": 1, "return_token_ids": True}
    assert post("/v1/chat/completions", **asked)["prompt_token_ids"] == chat["tokens"]


# --- fields ---------------------------------------------------------------------------------------------------------


def test_lenient_is_off_and_unknown_fields_name_the_nearest(server):
    answer = server.http.post("/v1/completions", json={**ASK, "temprature": 1})
    assert "temperature" in answer.json()["error"]["message"]
