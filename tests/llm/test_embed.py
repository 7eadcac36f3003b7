"""``LLM.embed``: vectors in this process."""

import numpy as np
import pytest
import torch
import transformers

from headrace import SamplingParams
from headrace.errors import EngineError, InvalidInput

PROMPTS = ["the quick brown", "what is the capital", "a"]


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_equal_transformers(llm, tiny, pooling, normalize):
    folder, model = tiny
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt, output in zip(PROMPTS, llm.embed(PROMPTS, pooling=pooling, normalize=normalize), strict=True):
        ids = tokenizer(prompt)["input_ids"]
        with torch.no_grad():
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        expected = hidden.mean(0) if pooling == "mean" else hidden[-1]
        if normalize:
            expected = expected / np.linalg.norm(expected)
        assert (output.prompt_token_ids, output.finished) == (ids, True)
        np.testing.assert_allclose(output.outputs.embedding, expected, atol=1e-5)


def test_one_prompt_of_any_form(llm):
    ids = llm.get_tokenizer().encode("a")
    forms = ["a", {"prompt": "a"}, ids, {"prompt_token_ids": ids}]
    assert len({tuple(llm.embed(form)[0].outputs.embedding) for form in forms}) == 1


def test_streams_go_on_meanwhile(llm):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    alone = llm.generate("the cat", params)[0].outputs[0].text
    stream = llm.stream("the cat", params)
    first = next(stream).text
    llm.embed(PROMPTS)
    assert first + "".join(piece.text for piece in stream) == alone


def test_what_cannot_be_embedded_is_refused_before_anything_runs(llm):
    for prompts, options, field in (
        (["a", ""], {}, "prompts[1]"),
        (["a", [1] * 600], {}, "prompts[1]"),
        ([[1, 999]], {}, "prompts[0][1]"),
        ("a", {"pooling": "max"}, "pooling"),
    ):
        with pytest.raises(InvalidInput) as caught:
            llm.embed(prompts, **options)
        assert caught.value.field == field
    assert llm.embed([[5] * llm.info.context_length])[0].num_cached_tokens == 0


def test_a_failure_is_raised(llm, monkeypatch):
    executor = llm._driver._engine.executor
    forward = executor._forward

    def broken(batch, rows):
        return forward(batch, rows) * float("nan")

    monkeypatch.setattr(executor, "_forward", broken)
    with pytest.raises(EngineError, match="not finite"):
        llm.embed("a")
