"""Text, stops, tokens and log probabilities as clients see them, streamed and whole; prefixes shared.

Several are complaints that users of other servers have filed, turned into tests.
"""

import pytest
from servers import NAME, assert_same_logprobs, sse

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]
IDS = {"return_token_ids": True}
EOS = 2  # <|im_end|>


def ask(server, **body):
    answer = server.http.post("/v1/completions", json={"model": NAME, "temperature": 0, "max_tokens": 16, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(server, **body):
    """The events of a streamed completion, without the last mark."""
    body = {"model": NAME, "temperature": 0, "max_tokens": 16, "stream": True, **body}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        events = list(sse(answer.iter_lines()))
    assert events.pop() == "[DONE]"
    return events


def joined(events, index=0):
    return "".join(c["text"] for event in events for c in event["choices"] if c["index"] == index)


# --- stop strings -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def free(server):
    """A greedy continuation, its tokens, and each token's text."""
    answer = ask(server, prompt="The three primary colours are", max_tokens=14, **IDS)
    (choice,) = answer["choices"]
    pieces = [server.http.post("/detokenize", json={"tokens": [t]}).json()["prompt"] for t in choice["token_ids"]]
    assert "".join(pieces) == choice["text"]
    return choice["text"], pieces


def _middle_of_a_token(pieces):
    """A stop string inside one token, and the text before it."""
    for i, piece in enumerate(pieces[3:], 3):
        before = "".join(pieces[:i])
        if len(piece) > 3 and piece[2:4] not in before + piece[:3]:
            return piece[2:4], before + piece[:2]
    raise AssertionError(pieces)


def _across_tokens(pieces):
    """A stop string that begins in one token and ends in the next."""
    for i in range(3, len(pieces) - 1):
        stop = pieces[i][-1] + pieces[i + 1][:2]
        text = "".join(pieces)
        if len(stop) == 3 and stop not in text[: len("".join(pieces[: i + 1])) + 1]:
            return stop, text[: text.index(stop)]
    raise AssertionError(pieces)


def _whole_token(pieces):
    text = "".join(pieces)
    for i in range(3, len(pieces)):
        if pieces[i] not in "".join(pieces[:i]):
            return pieces[i], text[: text.index(pieces[i])]
    raise AssertionError(pieces)


@pytest.mark.parametrize("kind", [_middle_of_a_token, _across_tokens, _whole_token])
def test_stop_anywhere_in_a_token_loses_no_text(server, free, kind):
    stop, before = kind(free[1])
    body = {"prompt": "The three primary colours are", "max_tokens": 14, "stop": [stop]}
    (choice,) = ask(server, **body)["choices"]
    assert choice["text"] == before
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    events = stream(server, **body)
    assert joined(events) == before
    assert events[-1]["choices"][0]["stop_reason"] == stop


def test_half_a_stop_string_at_the_end_is_text(server, free):
    text, _ = free
    body = {"prompt": "The three primary colours are", "max_tokens": 14, "stop": text[-3:] + "never"}
    assert ask(server, **body)["choices"][0]["text"] == text
    assert joined(stream(server, **body)) == text


def test_text_before_a_newline_stop_survives_when_the_token_holds_two(server):
    """The token is made of two newlines and the stop string is one."""
    double = server.http.post("/tokenize", json={"prompt": "\n\n"}).json()["tokens"]
    assert len(double) == 1
    bias = {str(double[0]): 100}
    body = {"prompt": "Hello", "max_tokens": 4, "stop": "\n", "logit_bias": bias}
    (choice,) = ask(server, **body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    body["include_stop_str_in_output"] = True
    assert ask(server, **body)["choices"][0]["text"] == "\n"
    assert joined(stream(server, **body)) == "\n"


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
def test_min_tokens_holds_stops_back(server, free, field):
    text, pieces = free
    first = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"][0]
    stop = {"stop": [pieces[0].strip()[0]]} if field == "stop" else {"stop_token_ids": [first]}
    body = {"prompt": "The three primary colours are", "max_tokens": 14, **stop}
    assert ask(server, **body)["usage"]["completion_tokens"] == 1
    assert ask(server, **body, min_tokens=5)["usage"]["completion_tokens"] >= 5


def test_stop_token_is_counted_reported_and_not_shown(server, free):
    text, pieces = free
    tokens = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    body = {"prompt": "The three primary colours are", "max_tokens": 14, "stop_token_ids": [tokens[4]], **IDS}
    (choice,) = ask(server, **body)["choices"]
    at = tokens.index(tokens[4])
    assert choice["text"] == "".join(pieces[:at])
    assert choice["token_ids"] == tokens[: at + 1]
    assert choice["stop_reason"] == tokens[4]


def test_end_of_sequence(server):
    body = {"prompt": "Hello", "logit_bias": {str(EOS): 100}, "max_tokens": 4, **IDS}
    answer = ask(server, **body)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("", "stop", [EOS])
    assert "stop_reason" not in choice
    assert answer["usage"]["completion_tokens"] == 1
    (choice,) = ask(server, **body, ignore_eos=True)["choices"]
    assert (choice["finish_reason"], choice["token_ids"]) == ("length", [EOS] * 4)
    (choice,) = ask(server, **body, min_tokens=3)["choices"]
    assert len(choice["token_ids"]) == 4
    assert EOS not in choice["token_ids"][:3]
    shown = ask(server, **body, ignore_eos=True, skip_special_tokens=False)["choices"][0]["text"]
    assert shown == "<|im_end|>" * 4
    assert joined(stream(server, **body)) == ""


def test_characters_of_several_tokens_are_never_broken(server):
    fox = server.http.post("/tokenize", json={"prompt": "🦊"}).json()["tokens"]
    assert len(fox) > 1
    for i, token in enumerate(fox):
        # Force the character's tokens one after the other, in a chain of requests that each add one.
        body = {"prompt": fox[:i] or "A", "max_tokens": 1, "logit_bias": {str(token): 100}}
        (choice,) = ask(server, **body)["choices"]
        assert joined(stream(server, **body)) == choice["text"]
    repeated = {"prompt": "A", "max_tokens": 3, "logit_bias": {str(fox[0]): 100}, "ignore_eos": True}
    text = ask(server, **repeated)["choices"][0]["text"]
    assert joined(stream(server, **repeated)) == text
    assert "\ufffd" in text  # half characters, at the end, shown as what they are


# --- echo, log probabilities, offsets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        "Once upon a time",
        "naïve 東京 🦊 text",
        [19556, 28, 638, 359],
        "<|im_start|>user\nHi<|im_end|>\n",
        ["Hi there", "The sky"],
        [[28, 29], [30, 31, 32]],
    ],
)
def test_echo_with_logprobs_streamed_is_whole(server, prompt):
    n = 1 if prompt == "Once upon a time" else 2
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 3, "n": n, "ignore_eos": True, **IDS}
    whole = ask(server, **body)
    events = stream(server, **body)
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(prompts) * n))
    for choice in whole["choices"]:
        i = choice["index"]
        parts = [c for event in events for c in event["choices"] if c["index"] == i]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [t for part in parts for t in part["token_ids"]] == choice["token_ids"]
        records = [Record(part["logprobs"]) for part in parts]
        assert_same_logprobs(records, Record(choice["logprobs"]))
        given = prompts[i // n]
        if isinstance(given, str):
            assert choice["text"].startswith(given)
        else:
            assert choice["prompt_token_ids"] == given
        assert_offsets(choice)
        lengths = len(choice["prompt_token_ids"]) + len(choice["token_ids"])
        assert [len(choice["logprobs"][name]) for name in ("tokens", "token_logprobs", "top_logprobs")] == [lengths] * 3
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert choice["logprobs"]["top_logprobs"][0] is None


class Record:
    def __init__(self, fields):
        self.__dict__.update(fields)


def assert_offsets(choice):
    """A token's text stands at its offset, unless it is a piece of a character or a special token drawn."""
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    drawn = len(offsets) - len(choice["token_ids"]) if "token_ids" in choice else 0
    for i, (token, offset) in enumerate(zip(choice["logprobs"]["tokens"], offsets, strict=True)):
        hidden = token.startswith("<|") and i >= drawn
        if "\ufffd" not in token and not token.startswith("bytes:") and not hidden:
            assert choice["text"].startswith(token, offset), (token, offset, choice["text"])


@pytest.mark.parametrize("stop", [None, "e"])
def test_offsets_without_echo_begin_at_zero(server, stop):
    body = {"prompt": "The three primary colours are", "logprobs": 0, "max_tokens": 8, "stop": stop}
    (choice,) = ask(server, **body)["choices"]
    assert choice["logprobs"]["text_offset"][0] == 0
    if stop is None:
        assert_offsets(choice)
    assert_same_logprobs(
        [Record(e["choices"][0]["logprobs"]) for e in stream(server, **body)], Record(choice["logprobs"])
    )


def test_echo_is_the_text_that_was_given(server):
    for prompt in ("a\x00b", " two  spaces ", "\n", "naïve"):
        (choice,) = ask(server, prompt=prompt, echo=True, max_tokens=1)["choices"]
        assert choice["text"].startswith(prompt)


def test_prompt_logprobs_do_not_depend_on_what_is_cached(server):
    prompt = [700 + i for i in range(64)]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1}
    cold = ask(server, **body)
    ask(server, prompt=prompt, max_tokens=1)
    warm = ask(server, **body)
    assert_same_logprobs([Record(warm["choices"][0]["logprobs"])], Record(cold["choices"][0]["logprobs"]))
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # computed whole


# --- several prompts, several samples -----------------------------------------------------------------------------


def test_lists_of_prompts_answer_like_each_alone(server):
    prompts = ["The sky is", "One, two,", "Roses are"]
    alone = [ask(server, prompt=p, max_tokens=6)["choices"][0]["text"] for p in prompts]
    together = ask(server, prompt=prompts, max_tokens=6, n=2)
    assert [c["text"] for c in together["choices"]] == [text for text in alone for _ in range(2)]
    assert [c["index"] for c in together["choices"]] == list(range(6))
    events = stream(server, prompt=prompts, max_tokens=6, n=2)
    assert [joined(events, i) for i in range(6)] == [text for text in alone for _ in range(2)]
    assert together["usage"]["completion_tokens"] == 36


def test_streamed_chat_samples_keep_their_indexes(server):
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "n": 4, "max_tokens": 5, "seed": 3}
    with server.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        events = list(sse(answer.iter_lines()))[:-1]
    roles = [c["index"] for event in events for c in event["choices"] if c["delta"].get("role")]
    assert sorted(roles) == [0, 1, 2, 3]
    whole = server.http.post("/v1/chat/completions", json=body).json()
    for choice in whole["choices"]:
        parts = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        assert "".join(p["delta"].get("content", "") for p in parts) == choice["message"]["content"]
        assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [choice["finish_reason"]]


# --- chats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Hello.", "tool_calls": []},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "not JSON"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": "free text"}}],
        },
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "[]"}},
        {"role": "function", "name": "f", "content": None},
        {"role": "assistant", "refusal": "No."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "developer", "content": "Be brief."},
    ],
)
def test_histories_that_broke_others_are_served(server, message):
    messages = [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "And?"}]
    body = {"model": NAME, "messages": messages, "max_tokens": 2}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


def test_continue_final_message(server):
    messages = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "One, two,"}]
    body = {"model": NAME, "messages": messages, "max_tokens": 6, "temperature": 0, "continue_final_message": True}
    answer = server.http.post("/v1/chat/completions", json={**body, **IDS}).json()
    shown = server.http.post("/detokenize", json={"tokens": answer["prompt_token_ids"]}).json()["prompt"]
    assert shown.endswith("One, two,")


# --- prefixes -----------------------------------------------------------------------------------------------------


def test_a_long_prompt_sent_twice_is_cached(server):
    prompt = [1000 + (i * 7919) % 40000 for i in range(1500)]
    cold = ask(server, prompt=prompt, max_tokens=8, timings=True, **IDS)
    warm = ask(server, prompt=prompt, max_tokens=8, timings=True, **IDS)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 1480
    assert warm["choices"][0]["token_ids"] == cold["choices"][0]["token_ids"]
    assert warm["timings"]["prefill"] < cold["timings"]["prefill"] / 3

    *_, last = stream(server, prompt=prompt, max_tokens=1, stream_options={"include_usage": True})
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= 1480


def test_a_salt_separates_tenants(server):
    prompt = [2000 + i for i in range(100)]
    salts = ("", "", "tenant", "tenant", "other")
    answers = [ask(server, prompt=prompt, max_tokens=4, **({"cache_salt": salt} if salt else {})) for salt in salts]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, 96, 0, 96, 0]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1


def test_a_growing_chat_reuses_its_past(server):
    messages = [{"role": "user", "content": "Tell me about the history of bridges. " * 10}]
    body = {"model": NAME, "max_tokens": 6, "temperature": 0, **IDS}
    first = server.http.post("/v1/chat/completions", json={**body, "messages": messages}).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    messages[1].pop("refusal")
    second = server.http.post("/v1/chat/completions", json={**body, "messages": messages}).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] // 16 * 16
