"""Berkeley's function-calling cases on the real server: what is required to be a call is one, with valid arguments.

https://gorilla.cs.berkeley.edu/leaderboard.html; the cases are read from the folder of public data, not shipped.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from servers import NAME, running

pytestmark = [pytest.mark.model, pytest.mark.bars]

KINDS = ("simple_python", "multiple", "parallel")
EACH = 100
MOST_TOKENS = 512
# The cases' own names of types.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "String": "string", "any": None}


def as_json_schema(schema):
    if isinstance(schema, list):
        return [as_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: as_json_schema(value) for key, value in schema.items()}
    if isinstance(out.get("type"), str):
        out["type"] = TYPES.get(out["type"], out["type"])
        if out["type"] is None:
            del out["type"]
    return out


def cases(public_data):
    for kind in KINDS:
        path = public_data / "bfcl" / f"BFCL_v4_{kind}.json"
        for line in path.read_text(encoding="utf-8").splitlines()[:EACH]:
            case = json.loads(line)
            functions = [{**f, "parameters": as_json_schema(f["parameters"])} for f in case["function"]]
            yield case["id"], case["question"][0], functions


@pytest.fixture
def ask(smollm2, tmp_path):
    def answer(case):
        _, messages, functions = case
        return (
            one.client()
            .chat.completions.create(
                model=NAME,
                messages=messages,
                tools=[{"type": "function", "function": function} for function in functions],
                tool_choice="required",
                max_tokens=MOST_TOKENS,
                temperature=0,
                frequency_penalty=0.5,  # a model of this size repeats itself without end
            )
            .choices[0]
        )

    with running(smollm2, tmp_path, "--executor", "compiled", "--kv-memory", "512MiB", "--max-running", "16") as one:
        yield answer


def test_required_calls_are_valid(ask, public_data):
    every = list(cases(public_data))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, every))
    ended = 0
    for (name, _, functions), choice in zip(every, answers, strict=True):
        schemas = {function["name"]: function["parameters"] for function in functions}
        for call in choice.message.tool_calls or ():
            arguments = json.loads(call.function.arguments)
            jsonschema.Draft202012Validator(schemas[call.function.name]).validate(arguments)
        if choice.finish_reason == "length":
            assert choice.message.malformed_tool_calls, name
            continue
        ended += 1
        assert choice.finish_reason == "tool_calls", name
        assert choice.message.tool_calls, name
        assert not choice.message.content, name
    print(f"{ended} of {len(every)} ended within {MOST_TOKENS} tokens")
    assert ended >= 0.95 * len(every)
