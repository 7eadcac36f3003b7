import json
import signal
import subprocess
import sys

import pytest

from headrace import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(tiny):
    return LLM(tiny, threads=1, kv_memory=8 << 20)


@pytest.fixture
def generate(run, tiny):
    def invoke(*args, stdin=None):
        common = ("--model", tiny, "--threads", 1, "--kv-memory", "8MiB", "--temperature", 0)
        return run("generate", *args, *common, stdin=stdin)

    return invoke


def greedy(llm, prompt, tokens):
    return llm.generate(prompt, SamplingParams(temperature=0, max_tokens=tokens))[0]


def test_prints_what_llm_generates(generate, llm):
    result = generate("the quick brown", "--max-tokens", 12)
    assert result.exit_code == 0
    assert result.stdout == greedy(llm, "the quick brown", 12).outputs[0].text + "\n"
    assert not result.stderr


@pytest.mark.parametrize("args", [[], ["-"]])
@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_reads_the_prompt_from_standard_input(generate, llm, args, ending):
    result = generate(*args, "--max-tokens", 5, stdin=f"a\nb {ending}")
    assert result.stdout == greedy(llm, "a\nb ", 5).outputs[0].text + "\n"


def test_json(generate, llm):
    result = generate("the cat", "--max-tokens", 7, "--json", "--ignore-eos")
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["text"] == greedy(llm, "the cat", 7).outputs[0].text
    assert found["prompt"] == "the cat"
    assert found["finish_reason"] == "length"
    prompt = len(llm.get_tokenizer().encode("the cat"))
    assert found["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 7,
        "total_tokens": prompt + 7,
        "cached_tokens": 0,
    }
    assert len(found["token_ids"]) == 7
    assert 0 < found["timings"]["time_to_first_token"] <= found["timings"]["end_to_end"]


def test_chat_applies_the_template(generate, llm):
    result = generate("hello", "--chat", "--system", "be brief", "--max-tokens", 4, "--json")
    talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    (expected,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=4))
    assert json.loads(result.stdout)["prompt"] == expected.prompt
    assert json.loads(result.stdout)["token_ids"] == expected.outputs[0].token_ids
    assert (
        generate("hello", "--chat", "--system", "be brief", "--max-tokens", 4).stdout == expected.outputs[0].text + "\n"
    )


def test_stop_and_timings(generate, llm):
    free = greedy(llm, "the quick brown", 20).outputs[0].text
    stop = free[6:8]
    result = generate("the quick brown", "--max-tokens", 20, "--stop", "\x01\x02", "--stop", stop, "--timings")
    assert result.stdout == free[: free.index(stop)] + "\n"
    assert "(stop)" in result.stderr
    assert "tokens/s" in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["a", "--model", "/no/such.gguf"], "model: unknown model '/no/such.gguf'"),
        (["a", "--temperature", "-1"], "temperature: must be"),
        (["a", "--stop", ""], "stop[0]: "),
        (["a", "--kv-memory", "lots"], "kv_memory: 'lots' is not an amount"),
        (["a", "--context-length", 100000], "max_model_len: the model's context is 512"),
        ([""], "prompt: the prompt is empty"),
        (["a " * 2000], "prompt: the prompt has"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_1(run, tiny, args, says):
    result = run("generate", "--model", tiny, "--threads", 1, "--kv-memory", "8MiB", *args)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {says}")
    assert not result.stdout


def test_input_that_is_not_text(generate):
    result = generate(stdin=b"caf\xe9")
    assert result.exit_code == 1
    assert "not UTF-8" in result.stderr


def test_ctrl_c_stops_it_with_status_130(tiny):
    command = [sys.executable, "-m", "headrace.cli", "generate", "the", "--model", tiny, "--threads", "1"]
    command += ["--max-tokens", "500", "--ignore-eos", "--kv-memory", "8MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
