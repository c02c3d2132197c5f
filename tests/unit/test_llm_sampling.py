"""Sampling options through the Python API on a tiny model: what each does to a text."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from tiny_model import EOS, VOCAB_SIZE, write_model

from everbatch import LLM, SamplingParams
from everbatch.base.errors import InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=64)


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    [answer] = llm.generate(prompt, params)
    return answer.outputs[0].text


def test_one_set_of_options_a_prompt_must_be_as_many(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts came with 3 sampling_params"):
        llm.generate(["a", "b"], [GREEDY] * 3)
    with pytest.raises(InvalidRequest, match="must hold SamplingParams"):
        llm.generate(["a"], [{"temperature": 0}])


def test_options_changed_later_are_checked_when_used(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    params.max_tokens = 3

    assert len(text_of(llm, "a", params)) == 3
    params.temperature = -1.0
    with pytest.raises(InvalidRequest, match="temperature"):
        llm.generate("a", params)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize(
    "option", [{"top_p": 5e-324}, {"temperature": 5e-324}, {"top_p": 1e-40}, {"min_p": 1.0}]
)
def test_value_that_leaves_the_likeliest_token_alone_is_greedy(
    model: Path, kernels: str, option: dict[str, float]
) -> None:
    llm = LLM(model, num_blocks=64, kernels=kernels)

    assert text_of(llm, "abc", SamplingParams(seed=1, max_tokens=24, **option)) == text_of(
        llm, "abc"
    )


def test_repetition_penalty_by_which_nothing_can_be_divided_is_refused(llm: LLM) -> None:
    least = SamplingParams(temperature=0, max_tokens=4, repetition_penalty=0.01)

    assert len(text_of(llm, "abc", least)) == 4
    for value in (0.0099, 5e-324):
        with pytest.raises(InvalidRequest, match=r"repetition_penalty must lie in \[0.01, 2\]"):
            SamplingParams(repetition_penalty=value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids has the token id"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias has the token id"),
        ({"min_tokens": 256, "max_tokens": None}, "min_tokens is 256"),
    ],
)
def test_option_that_the_model_cannot_meet_is_refused(
    llm: LLM, option: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        llm.generate("a", SamplingParams(**option))


def test_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    whole = text_of(llm, "hello")
    stop = whole[10:13]
    expected = whole[: whole.index(stop)]

    [cut] = llm.generate("hello", SamplingParams(temperature=0, stop=stop))
    [kept] = llm.generate(
        "hello", SamplingParams(temperature=0, stop=[stop], include_stop_str_in_output=True)
    )

    assert (cut.outputs[0].text, cut.outputs[0].stop_reason) == (expected, stop)
    assert cut.outputs[0].finish_reason == "stop"
    assert kept.outputs[0].text == expected + stop
    assert not llm.real.engine.has_work
    assert llm.real.engine.stats().kv_cache_usage == 0


def test_stop_token_ends_the_text_and_is_no_part_of_it(llm: LLM) -> None:
    whole = text_of(llm, "hello")
    stop = whole[10]

    [answer] = llm.generate("hello", SamplingParams(temperature=0, stop_token_ids=[ord(stop)]))

    assert answer.outputs[0].text == whole[: whole.index(stop)]
    assert answer.outputs[0].stop_reason == ord(stop)
    assert answer.outputs[0].token_ids[-1] == ord(stop)


def test_eos_ends_unless_ignored_or_too_early(llm: LLM) -> None:
    always_eos = {"temperature": 0, "logit_bias": {EOS: 100.0}, "max_tokens": 5}

    [ended] = llm.generate("a", SamplingParams(**always_eos))
    [ignored] = llm.generate("a", SamplingParams(**always_eos, ignore_eos=True))
    [late] = llm.generate("a", SamplingParams(**always_eos, min_tokens=3))

    assert ended.outputs[0].token_ids == [EOS]
    assert (ended.outputs[0].text, ended.outputs[0].finish_reason) == ("", "stop")
    assert ended.outputs[0].stop_reason is None
    assert ignored.outputs[0].token_ids == [EOS] * 5
    assert ignored.outputs[0].finish_reason == "length"
    assert len(late.outputs[0].token_ids) == 4
    assert late.outputs[0].token_ids[-1] == EOS


def test_seeded_text_depends_on_the_seed_alone(model: Path) -> None:
    params = [SamplingParams(seed=seed, max_tokens=20) for seed in range(8)]
    first = [answer.outputs[0].text for answer in LLM(model).generate(["a"] * 8, params)]
    other = LLM(model, seed=5, max_num_seqs=3, max_num_batched_tokens=4, num_blocks=20)
    noise = SamplingParams(max_tokens=30)

    mixed = other.generate(["noise"] * 5 + ["a"] * 8, [noise] * 5 + params)

    assert [answer.outputs[0].text for answer in mixed[5:]] == first
    assert len(set(first)) == 8


def test_unseeded_texts_come_from_the_seed_of_the_engine(model: Path) -> None:
    def texts(seed: int) -> list[str]:
        answers = LLM(model, seed=seed).generate(["a"] * 3, SamplingParams(max_tokens=20))
        return [answer.outputs[0].text for answer in answers]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(2)}) == 6


def test_logprobs_tell_of_each_token_and_the_likeliest(llm: LLM) -> None:
    [answer] = llm.generate("hello", SamplingParams(seed=1, max_tokens=12, logprobs=3))
    completion = answer.outputs[0]

    assert completion.logprobs is not None
    assert len(completion.logprobs) == 12
    for token_id, told in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(told)) == token_id
        assert len(told) in (3, 4)
        assert {1, 2, 3} <= {one.rank for one in told.values()}
        ranked = sorted(told.values(), key=lambda one: one.rank)
        assert all(a.logprob >= b.logprob for a, b in pairwise(ranked))
        assert sum(math.exp(one.logprob) for one in told.values()) <= 1 + 1e-5
        if token_id < 128:
            assert told[token_id].decoded_token == chr(token_id)
    sampled = [next(iter(told.values())).logprob for told in completion.logprobs]
    assert completion.cumulative_logprob == pytest.approx(sum(sampled))


def test_logprobs_of_nothing_but_the_token_and_none_at_all(llm: LLM) -> None:
    [bare] = llm.generate("a", SamplingParams(temperature=0, max_tokens=2, logprobs=0))
    [none] = llm.generate("a", SamplingParams(temperature=0, max_tokens=2))

    assert bare.outputs[0].logprobs is not None
    assert [list(told) for told in bare.outputs[0].logprobs] == [
        [token_id] for token_id in bare.outputs[0].token_ids
    ]
    assert none.outputs[0].logprobs is None
    assert none.outputs[0].cumulative_logprob is None


def test_penalties_keep_tokens_from_coming_again(llm: LLM) -> None:
    long = {"temperature": 0, "max_tokens": 90}
    plain = llm.generate("hello", SamplingParams(**long))[0].outputs[0].token_ids
    penalised = [
        llm.generate("hello", SamplingParams(**long, **{name: 2.0}))[0].outputs[0].token_ids
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
    ]

    for token_ids in penalised:
        assert len(set(token_ids)) > len(set(plain))
