"""One real server for most tests, one small and strict one, and ways to ask them."""

import pytest
from servers import NAME, running


@pytest.fixture(scope="session")
def server(smollm2, tmp_path_factory):
    """The real model with a context of some 4,000 tokens; its log is JSON."""
    flags = ("--kv-memory", "192MiB", "--max-running", "16", "--max-queue", "2000", "--log-format", "json")
    flags += ("--max-batch-tokens", "128")  # short steps, so that a test seldom waits for the end of one
    with running(smollm2, tmp_path_factory.mktemp("server"), *flags, "--cors-origin", "https://page.example") as one:
        yield one


@pytest.fixture(scope="session")
def small(smollm2, tmp_path_factory):
    """A context of 64 tokens, two at once, nobody waits, keys from a flag and a file, bodies up to 100 kB."""
    folder = tmp_path_factory.mktemp("small")
    keys = folder / "keys"
    keys.write_text("from-file\n\nключ\n", encoding="utf-8")
    flags = ("--context-length", "64", "--max-running", "2", "--max-queue", "0", "--max-body", "100kB")
    flags += ("--kv-memory", "16MiB", "--api-key", "from-flag", "--api-key-file", str(keys))
    with running(smollm2, folder, *flags) as one:
        one.http.headers["Authorization"] = "Bearer from-flag"
        yield one


@pytest.fixture
def client(server):
    with server.client() as one:
        yield one


@pytest.fixture
def at_rest(server):
    """After the test nothing runs, waits or holds a page."""
    yield
    server.assert_comes_to_rest()


@pytest.fixture
def chat(client):
    def ask(content="Name three rivers.", **options):
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return client.chat.completions.create(
            **{"model": NAME, "messages": messages, "max_tokens": 8, "temperature": 0, **options}
        )

    return ask


@pytest.fixture
def complete(client):
    def ask(prompt="Once upon a time", **options):
        return client.completions.create(
            **{"model": NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0, **options}
        )

    return ask
