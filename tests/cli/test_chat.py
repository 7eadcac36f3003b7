import builtins
import json
import socket

import pytest

from headrace.cli import chat
from headrace.cli.chat import Conversation
from headrace.cli.chat_client import ChatClient
from headrace.errors import HeadraceError, InvalidInput


def test_one_question(run, fake):
    result = run("chat", "hi", "--url", fake.url)
    assert result.exit_code == 0
    assert result.stdout == "Hello wörld\n"
    (request,) = fake.requests
    assert request == {"model": "first", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    assert all("Authorization" not in headers for headers in fake.headers)


def test_a_question_from_a_pipe_with_every_option(run, fake):
    options = ["--model", "m", "--system", "s", "--temperature", "0.5", "--max-tokens", "9", "--seed", "3"]
    result = run("chat", "--url", f"{fake.url}/v1/", "--api-key", "secret", *options, stdin="two\nlines\n")
    assert result.stdout == "Hello wörld\n"
    (request,) = fake.requests
    assert request == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two\nlines"}],
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "stream": True,
    }
    assert [headers["Authorization"] for headers in fake.headers] == ["Bearer secret"]


def test_the_environment_names_server_and_key(run, fake, monkeypatch):
    monkeypatch.setenv("HEADRACE_URL", fake.url)
    monkeypatch.setenv("HEADRACE_API_KEY", "from-env")
    assert run("chat", "hi").exit_code == 0
    assert fake.headers[0]["Authorization"] == "Bearer from-env"


def test_a_proxy_is_not_asked_for_this_machine(run, fake, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert run("chat", "hi", "--url", fake.url).exit_code == 0


def test_no_server(run):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        result = run("chat", "hi", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 1
    assert "no server answers" in result.stderr
    assert "headrace serve" in result.stderr


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        ((401, {"error": {"message": "no such key"}}), "(401): no such key (give the key with --api-key"),
        ((400, {"error": {"message": "temperature: too hot", "param": "temperature"}}), "(400): temperature: too hot"),
        ((502, b"<html>bad gateway</html>"), "(502): Bad Gateway, with a web page"),
        ((500, b""), "(500): Internal Server Error"),
        ((429, ["odd"]), "(429): ['odd']"),
    ],
)
def test_refusals_are_shown(run, fake, refuse, says):
    fake.refuse = refuse
    for args in (["--model", "m"], []):
        result = run("chat", "hi", "--url", fake.url, *args)
        assert result.exit_code == 1
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ([], "broke off"),
        ([json.dumps({"error": {"message": "the engine was lost"}})], "the server failed: the engine was lost"),
        (["{not json"], "not in OpenAI's form"),
        (["[1, 2]"], "not in OpenAI's form"),
        ([json.dumps({"choices": [3]})], "not in OpenAI's form"),
    ],
)
def test_answers_that_fail_midway(run, fake, tail, says):
    fake.tail = tail
    result = run("chat", "hi", "--url", fake.url)
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stdout.startswith("Hello wörld")


@pytest.mark.parametrize("body", [{"nothing": 1}, {"data": 3}, b"hello", {"data": [{}]}])
def test_what_is_no_such_server(run, fake, body):
    fake.refuse = (200, body)
    result = run("chat", "hi", "--url", fake.url)
    assert result.exit_code == 1
    assert "no OpenAI-compatible server" in result.stderr


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://[::1", "http://a:b"])
def test_bad_addresses(url):
    with pytest.raises(InvalidInput) as caught:
        ChatClient(url)
    assert caught.value.field == "url"


def test_an_address_without_a_scheme():
    assert ChatClient("localhost:8001/v1/").url == "http://localhost:8001"


@pytest.fixture
def talk(fake):
    with ChatClient(fake.url) as client:
        yield Conversation(client, {"model": "m"}, "be brief")


def converse(talk, monkeypatch, lines):
    """Type lines; an exception among them is raised at the prompt."""
    typed = iter([*lines, EOFError()])

    def line(prompt):
        value = next(typed)
        if isinstance(value, BaseException):
            raise value
        return value

    monkeypatch.setattr(builtins, "input", line)
    chat._converse(talk)


def test_a_conversation_remembers(talk, fake, monkeypatch, capsys):
    converse(talk, monkeypatch, ["one", "  ", "two", "/clear", "three", "/help"])
    roles = [[m["role"] for m in r["messages"]] for r in fake.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert fake.requests[1]["messages"][2]["content"] == "Hello wörld"
    said = capsys.readouterr()
    assert said.out == "Hello wörld\n" * 3 + "\n"
    assert said.err.count(chat.HELP) == 2


def test_ctrl_c_at_the_prompt_goes_on_and_exit_leaves(talk, fake, monkeypatch):
    converse(talk, monkeypatch, [KeyboardInterrupt(), "one", "/exit", "never"])
    assert len(fake.requests) == 1


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(talk, fake, monkeypatch, capsys):
    shown = []

    def interrupt(pieces):
        for piece in pieces:
            shown.append(piece)
            if len(shown) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_show", interrupt)
    converse(talk, monkeypatch, ["one", "two"])
    assert fake.requests[1]["messages"][2] == {"role": "assistant", "content": "Hello"}


def test_an_error_in_a_conversation_is_shown_and_forgotten(talk, fake, monkeypatch, capsys):
    fake.refuse = (400, {"error": {"message": "too long"}})
    converse(talk, monkeypatch, ["one"])
    assert "too long" in capsys.readouterr().err
    assert talk.turns == []


def test_no_model(run, fake):
    fake.models = []
    result = run("chat", "hi", "--url", fake.url)
    assert result.exit_code == 1
    assert "offers no model" in result.stderr


def test_closing_an_answer_early_closes_the_connection(fake):
    with ChatClient(fake.url) as client:
        pieces = client.stream({"model": "m", "messages": []})
        assert next(pieces) == "Hel"
        pieces.close()
        assert list(client.stream({"model": "m", "messages": []})) == fake.pieces


def test_a_server_that_goes_away():
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def hang_up():
            connection, _ = server.accept()
            connection.recv(65536)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with (
            ChatClient(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(HeadraceError, match="went away"),
        ):
            client.models()
        thread.join()
