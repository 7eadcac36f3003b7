import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

import headrace
from headrace import LLM, SamplingParams
from headrace.errors import CheckpointError, InvalidInput

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = ["the quick brown", "what is the capital", "a", "the cat sleeps in the sun and"]


@pytest.fixture(scope="module")
def hf_tokenizer(tiny):
    return transformers.AutoTokenizer.from_pretrained(tiny[0])


@torch.no_grad()
def reference(model, tokens, count):
    out = model.generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False)
    return out[0, len(tokens) :].tolist()


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_greedy_equals_transformers(llm, tiny, hf_tokenizer):
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.prompt for o in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        tokens = hf_tokenizer(prompt)["input_ids"]
        (sample,) = output.outputs
        assert output.prompt_token_ids == tokens
        assert sample.token_ids == reference(tiny[1], tokens, 24)
        ended = sample.token_ids[-1] == 2
        assert sample.finish_reason == ("stop" if ended else "length")
        assert sample.text == hf_tokenizer.decode(sample.token_ids, skip_special_tokens=True)
        assert (output.finished, sample.stop_reason, sample.logprobs, sample.cumulative_logprob) == (True,) + (
            None,
        ) * 3


def test_all_forms_of_a_prompt_are_the_same(llm):
    ids = llm.get_tokenizer().encode("the quick brown")
    forms = [
        "the quick brown",
        {"prompt": "the quick brown"},
        ids,
        tuple(ids),
        {"prompt_token_ids": ids},
        np.array(ids),
    ]
    together = [o.outputs[0].text for o in llm.generate(forms, GREEDY)]
    alone = [llm.generate(form, GREEDY)[0].outputs[0].text for form in forms]
    assert len({*together, *alone}) == 1
    assert llm.generate({"prompt_token_ids": ids}, GREEDY)[0].prompt is None
    assert llm.generate([], GREEDY) == []


def test_chat_equals_transformers(llm, tiny, hf_tokenizer):
    talks = [
        [{"role": "user", "content": "what is the capital of France?"}],
        [{"role": "system", "content": "the cat"}, {"role": "user", "content": [{"type": "text", "text": "sleeps"}]}],
    ]
    plain = [*talks[:1], [talks[1][0], {"role": "user", "content": "sleeps"}]]
    for output, talk in zip(llm.chat(talks, GREEDY), plain, strict=True):
        tokens = hf_tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert output.prompt_token_ids == tokens
        assert output.outputs[0].token_ids == reference(tiny[1], tokens, 24)
    assert llm.chat(talks[0], GREEDY)[0].outputs[0].text == llm.chat(talks, GREEDY)[0].outputs[0].text
    pieces = llm.stream_chat(talks[0], GREEDY)
    assert "".join(p.text for p in pieces) == llm.chat(talks[0], GREEDY)[0].outputs[0].text


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1.5, seed=3, max_tokens=40, n=3),
        SamplingParams(temperature=1.5, seed=4, max_tokens=40, stop=["e", "zz"], logprobs=2),
    ],
)
def test_stream_joined_is_generate(llm, params):
    whole = llm.generate("the quick brown", params)[0].outputs
    pieces = list(llm.stream("the quick brown", params))
    for index, sample in enumerate(whole):
        own = [p for p in pieces if p.index == index]
        assert "".join(p.text for p in own) == sample.text
        assert [t for p in own for t in p.token_ids] == sample.token_ids
        assert [p.finish_reason for p in own] == [None] * (len(own) - 1) + [sample.finish_reason]
        assert own[-1].stop_reason == sample.stop_reason
        assert own[-1].timings.end_to_end > 0
        if params.logprobs is not None:
            assert [entry for p in own for entry in p.logprobs] == sample.logprobs


def test_a_seed_fixes_the_output_whatever_runs_beside_it(llm):
    seeded = SamplingParams(temperature=1.2, seed=11, max_tokens=30)
    alone = llm.generate("the lazy dog", seeded)[0].outputs[0].token_ids
    noise = SamplingParams(temperature=1.2, max_tokens=20)
    among = llm.generate([*PROMPTS, "the lazy dog"], [noise] * len(PROMPTS) + [seeded])
    assert among[-1].outputs[0].token_ids == alone
    other = llm.generate("the lazy dog", SamplingParams(temperature=1.2, seed=12, max_tokens=30))
    assert other[0].outputs[0].token_ids != alone


def test_samples_of_a_prompt_differ(llm):
    (output,) = llm.generate("the", SamplingParams(n=4, seed=1, max_tokens=30))
    assert [o.index for o in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(o.token_ids) for o in output.outputs}) == 4


def test_a_stop_string_ends_the_text_before_it(llm):
    free = llm.generate("the quick brown", GREEDY)[0].outputs[0].text
    stop = free[len(free) // 2 : len(free) // 2 + 2]
    where = free.index(stop)
    common = {"temperature": 0, "max_tokens": 24, "stop": stop}
    cut = llm.generate("the quick brown", SamplingParams(**common))[0].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (free[:where], "stop", stop)
    kept = llm.generate("the quick brown", SamplingParams(**common, include_stop_str_in_output=True))[0].outputs[0]
    assert kept.text == free[:where] + stop


def test_a_stop_token_ends_the_text_before_it(llm):
    free = llm.generate("the quick brown", GREEDY)[0].outputs[0].token_ids
    stop = free[5]
    at = free.index(stop)
    cut = llm.generate("the quick brown", SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[stop]))
    sample = cut[0].outputs[0]
    assert (sample.token_ids, sample.finish_reason, sample.stop_reason) == (free[: at + 1], "stop", stop)
    assert sample.text == llm.get_tokenizer().decode(free[:at])


def test_logprobs_are_the_model_s(llm, tiny):
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    (output,) = llm.generate("the quick brown fox", params)
    (sample,) = output.outputs
    tokens = output.prompt_token_ids + sample.token_ids
    with torch.no_grad():
        expected = torch.log_softmax(tiny[1](torch.tensor([tokens])).logits[0].double(), -1)
    start = len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    for position, entry in enumerate([*output.prompt_logprobs[1:], *sample.logprobs], start=1):
        wanted, top = expected[position - 1], 2 if position < start else 3
        assert next(iter(entry)) == tokens[position]
        assert set(wanted.topk(top).indices.tolist()) <= set(entry)
        for token, found in entry.items():
            assert found.logprob == pytest.approx(wanted[token].item(), abs=1e-4)
            assert found.rank == int((wanted > wanted[token]).sum()) + 1
            assert found.decoded_token == llm.get_tokenizer().token_text(token)
    chosen = sum(expected[start + i - 1, t].item() for i, t in enumerate(sample.token_ids))
    assert sample.cumulative_logprob == pytest.approx(chosen, abs=1e-3)


def test_max_tokens_is_cut_to_the_context(llm):
    (output,) = llm.generate([[5] * (llm.info.context_length - 3)], SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3
    assert output.outputs[0].finish_reason == "length"


def test_metrics_and_cached_tokens(llm):
    prompt = list(range(5, 105))
    llm.generate([prompt], GREEDY)
    (output,) = llm.generate([prompt], SamplingParams(n=2, max_tokens=4, ignore_eos=True))
    assert output.num_cached_tokens == 96
    line = output.metrics
    assert line.received <= line.tokenized <= line.queued <= line.first_scheduled <= line.first_token <= line.last_token
    assert output.outputs[0].timings.time_to_first_token > 0


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    ("", "prompts"),
    (["fine", ""], "prompts[1]"),
    (["fine", []], "prompts[1]"),
    (["fine", "\ud800"], "prompts[1]"),
    ([{"prompt": 3}], "prompts[0].prompt"),
    ([{}], "prompts[0]"),
    ([{"text": "a"}], "prompts[0]"),
    ([{"prompt": "a", "multi_modal_data": {}}], "prompts[0]"),
    ([{"prompt_token_ids": "abc"}], "prompts[0].prompt_token_ids"),
    ([{"prompt_token_ids": [1, 256]}], "prompts[0].prompt_token_ids[1]"),
    ([[1, -1]], "prompts[0][1]"),
    ([[1, 2.5]], "prompts[0][1]"),
    ([[1], ["a"]], "prompts[1][0]"),
    ([None], "prompts[0]"),
    (7, "prompts"),
    (None, "prompts"),
    (b"bytes", "prompts"),
    ([[5] * 512], "prompts[0]"),
]


@pytest.mark.parametrize(("prompts", "field"), REFUSED)
def test_bad_prompts_are_named_before_anything_runs(llm, prompts, field):
    before = llm._driver._engine.stats().step
    with pytest.raises(InvalidInput) as caught:
        llm.generate(prompts, GREEDY)
    assert caught.value.field == field
    assert str(caught.value).startswith(field + ": ")
    assert llm._driver._engine.stats().step == before


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], None),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"content": "a"}], "messages[0].role"),
        ([[{"role": "user", "content": "a"}], [{"role": "user", "content": "\udfff"}]], "messages[1][0].content"),
        ([[{"role": "user", "content": "a"}], []], "messages[1]"),
        ("text", "messages[0]"),
        (None, "messages"),
    ],
)
def test_bad_messages_are_named(llm, messages, field):
    if field is None:
        assert llm.chat(messages, GREEDY) == []
        return
    with pytest.raises(InvalidInput) as caught:
        llm.chat(messages, GREEDY)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ([GREEDY], "sampling_params"),
        ("greedy", "sampling_params"),
        ([GREEDY, None], "sampling_params"),
        ([GREEDY, SamplingParams(stop_token_ids=[256])], "sampling_params[1].stop_token_ids[0]"),
        (SamplingParams(logit_bias={999: 1.0}), "sampling_params.logit_bias.999"),
    ],
)
def test_bad_parameters_are_named(llm, params, field):
    with pytest.raises(InvalidInput) as caught:
        llm.generate(["a", "b"], params)
    assert caught.value.field == field


def test_a_stream_refuses_at_once(llm):
    with pytest.raises(InvalidInput, match="prompt: "):
        llm.stream("")
    with pytest.raises(InvalidInput, match=r"messages\[0\]\.role: "):
        llm.stream_chat([{}])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "int3"}, "dtype"),
        ({"threads": 0}, "threads"),
        ({"max_model_len": 513}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"kv_memory": 100}, "kv_memory"),
    ],
)
def test_bad_options_are_named_as_the_caller_knows_them(tiny, options, field):
    with pytest.raises(InvalidInput) as caught:
        LLM(tiny[0], **{"threads": 1, **options})
    assert caught.value.field == field


def test_bad_models(tmp_path):
    with pytest.raises(InvalidInput, match="smollm2-135m"):
        LLM("smollm2-135")
    with pytest.raises(CheckpointError):
        LLM(tmp_path)


# --- the package ------------------------------------------------------------------------------------------------------


def test_the_package_imports_without_anything_heavy():
    code = (
        "import sys, headrace; assert 'LLM' in dir(headrace); "
        "heavy = {'torch', 'transformers', 'numpy', 'headrace.llm'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_exports_what_it_lists():
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = headrace.Llm


@pytest.mark.model
def test_the_real_model_knows_paris(smollm2):
    llm = LLM(smollm2, threads=torch.get_num_threads(), kv_memory=128 << 20)
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=20))
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert "".join(p.text for p in llm.stream_chat(talk, SamplingParams(temperature=0))) == output.outputs[0].text
