"""The official client, unmodified, against the real server."""

import asyncio

import openai
import pytest
from servers import NAME, assert_same_logprobs

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]


def streamed_chat(chunks):
    """Texts, finish reasons and chunks of a stream, by choice."""
    chunks = list(chunks)
    texts, ends = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    return texts, ends, chunks


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == (NAME, "model")
    assert client.models.retrieve(NAME).id == NAME
    assert model.max_model_len > 4000
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_chat_streamed_is_chat_whole(chat):
    whole = chat(max_tokens=12, extra_body={"return_token_ids": True})
    (choice,) = whole.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens == len(choice.token_ids)
    assert whole.usage.prompt_tokens == len(whole.prompt_token_ids)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    options = {"stream": True, "stream_options": {"include_usage": True}}
    texts, ends, chunks = streamed_chat(chat(max_tokens=12, extra_body={"return_token_ids": True}, **options))
    assert texts == {0: choice.message.content}
    assert ends == {0: choice.finish_reason}
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert [t for chunk in chunks for c in chunk.choices for t in c.token_ids] == choice.token_ids
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_no_usage_chunk_unless_asked(chat):
    _, _, chunks = streamed_chat(chat(stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_completion_streamed_is_completion_whole(complete):
    whole = complete(max_tokens=16, logprobs=2, extra_body={"return_token_ids": True})
    (choice,) = whole.choices
    chunks = list(complete(max_tokens=16, logprobs=2, stream=True, extra_body={"return_token_ids": True}))
    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == choice.text
    assert [t for part in parts for t in part.token_ids] == choice.token_ids
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [choice.finish_reason]
    assert_same_logprobs([part.logprobs for part in parts], choice.logprobs)
    assert whole.usage.completion_tokens == 16 == len(choice.token_ids)


def test_async_client(server):
    async def ask():
        async with server.async_client() as client:
            messages = [{"role": "user", "content": "Name three rivers."}]
            options = {"model": NAME, "messages": messages, "max_tokens": 8, "temperature": 0}
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**options), client.chat.completions.create(stream=True, **options)
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            text = await client.completions.create(model=NAME, prompt="Once", max_tokens=4, temperature=0)
            models = [model.id async for model in client.models.list()]
            return whole.choices[0].message.content, "".join(texts), text.choices[0].text, models

    whole, streamed, text, models = asyncio.run(ask())
    assert whole == streamed
    assert text
    assert models == [NAME]


def test_n_choices(chat):
    whole = chat(n=3, temperature=1.0, seed=5, max_tokens=6)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    streamed, ends, _ = streamed_chat(chat(n=3, temperature=1.0, seed=5, max_tokens=6, stream=True))
    assert [streamed[i] for i in range(3)] == texts
    assert set(ends) == {0, 1, 2}


def test_n_greedy_choices_are_equal_and_count_the_prompt_once(chat):
    one, two = chat(), chat(n=2)
    assert {choice.message.content for choice in two.choices} == {one.choices[0].message.content}
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens


def test_stop_string(chat):
    free = chat(max_tokens=12).choices[0].message.content
    stop = free[10:13]
    (choice,) = chat(max_tokens=12, stop=[stop, "never seen"]).choices
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == stop
    assert choice.message.content == free[: free.index(stop)]
    shown = chat(max_tokens=12, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert shown.message.content == free[: free.index(stop)] + stop


def test_chat_logprobs(chat):
    whole = chat(logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy takes the likeliest
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
    chunks = list(chat(logprobs=True, top_logprobs=3, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [entry for part in parts if part for entry in part.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in entries], abs=1e-4)
    assert chat().choices[0].logprobs is None


def test_seed_does_not_depend_on_company(server, chat):
    options = {"temperature": 1.0, "seed": 1234, "max_tokens": 8}
    alone = chat("Tell me a story.", **options).choices[0].message.content

    async def crowd():
        async with server.async_client() as client:

            def ask(content, **more):
                messages = [{"role": "user", "content": content}]
                return client.chat.completions.create(model=NAME, messages=messages, **{**options, **more})

            others = [ask(f"Count to {i}.", seed=None, temperature=1.5) for i in range(6)]
            return await asyncio.gather(ask("Tell me a story."), *others)

    answers = asyncio.run(crowd())
    assert answers[0].choices[0].message.content == alone
    assert chat("Tell me a story.", **{**options, "seed": 4321}).choices[0].message.content != alone


def test_closing_a_stream_ends_the_work(server, chat):
    before = server.metrics()["headrace_requests_aborted_total"]
    stream = chat("Count to one thousand.", max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    server.assert_comes_to_rest(5)
    assert server.metrics()["headrace_requests_aborted_total"] == before + 1


def test_extensions(chat, complete):
    body = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True, "timings": True}
    whole = chat(temperature=1.5, extra_body=body)
    assert whole.usage.completion_tokens == 8
    times = whole.timings
    assert times["time_to_first_token"] <= times["end_to_end"]
    order = ("tokenized", "routed", "queued", "first_scheduled", "prefill_done", "first_token", "last_token")
    stamps = [times["stamps"][name] for name in order]
    assert stamps == sorted(stamps)
    *_, last = chat(stream=True, extra_body={"timings": True})
    assert last.choices == []
    assert last.timings["time_per_output_token"] > 0
    greedy, top1 = complete(), complete(temperature=2.0, seed=1, extra_body={"top_k": 1})
    assert greedy.choices[0].text == top1.choices[0].text
    assert "timings" not in chat().model_extra


@pytest.mark.parametrize(
    ("options", "kind", "param", "code"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "model_not_found"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
        ({"extra_body": {"max_token": 5}}, openai.BadRequestError, "max_token", "unknown_field"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools[0].function", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_error_classes(chat, options, kind, param, code, stream):
    with pytest.raises(kind) as caught:
        chat(stream=stream, **options)
    assert caught.value.param == param
    assert code is None or caught.value.code == code
    assert caught.value.request_id.startswith("req-")
    assert caught.value.type == "invalid_request_error"


def test_the_client_reads_the_request_id(chat, client):
    assert chat()._request_id.startswith("req-")
    raw = client.with_raw_response.models.list()
    assert raw.headers["x-request-id"].startswith("req-")
