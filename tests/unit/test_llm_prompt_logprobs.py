"""Log probabilities of prompts: what they are compared with, and what must not change them."""

from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_model

from everbatch import LLM, RequestOutput, SamplingParams
from everbatch.base.errors import InvalidRequest

PROMPTS = [f"{number}: a prompt that takes several chunks" for number in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=256)


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 40, "prompt_logprobs": 2, **options})


def scores_of(answer: RequestOutput) -> list[dict[int, tuple[float, int]] | None]:
    assert answer.prompt_logprobs is not None
    return [
        None if one is None else {key: (each.logprob, each.rank) for key, each in one.items()}
        for one in answer.prompt_logprobs
    ]


def test_prompt_is_scored_as_the_same_text_is_when_it_is_an_answer(llm: LLM) -> None:
    [said] = llm.generate("start", SamplingParams(temperature=0, max_tokens=20, logprobs=2))
    whole = [*said.prompt_token_ids, *said.outputs[0].token_ids]
    [scored] = llm.generate({"prompt_token_ids": whole}, params(max_tokens=1))

    assert said.outputs[0].logprobs is not None
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == len(whole)
    assert scored.prompt_logprobs[0] is None
    for there, here in zip(
        said.outputs[0].logprobs, scored.prompt_logprobs[len("start") :], strict=True
    ):
        assert here is not None
        assert list(there) == list(here)
        for token_id, one in there.items():
            assert (here[token_id].rank, here[token_id].decoded_token) == (
                one.rank,
                one.decoded_token,
            )
            assert here[token_id].logprob == pytest.approx(one.logprob, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"preemption_extent": "tail"},
        {"preemption_mode": "swap", "num_host_blocks": 64},
        {"batching": "static", "max_num_batched_tokens": 256, "max_num_seqs": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "recompute",
)
def test_scores_do_not_depend_on_chunks_preemption_and_company(
    llm: LLM, model: Path, options: dict[str, Any]
) -> None:
    pressed_by = {"num_blocks": 22, "block_size": 8, "max_num_batched_tokens": 16}
    pressed = LLM(model, **{**pressed_by, "admission": "now", **options})
    wanted = [params(n=1 + number % 2) for number in range(5)]

    found = pressed.generate(PROMPTS, wanted)

    if "batching" not in options:
        assert pressed.real.engine.stats().num_preemptions > 0
    alone = [llm.generate(prompt, one)[0] for prompt, one in zip(PROMPTS, wanted, strict=True)]
    assert [scores_of(answer) for answer in found] == [scores_of(answer) for answer in alone]
    assert [one.text for answer in found for one in answer.outputs] == [
        one.text for answer in alone for one in answer.outputs
    ]


def test_prompts_in_the_prefix_cache_are_scored_whole(llm: LLM) -> None:
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
    first, second = (llm.generate(PROMPTS[0], params(max_tokens=1))[0] for _ in range(2))

    assert None not in scores_of(first)[1:]
    assert scores_of(first) == scores_of(second)


def test_neighbours_are_not_touched(llm: LLM) -> None:
    plain = SamplingParams(temperature=0, max_tokens=12, logprobs=1)
    alone = llm.generate(PROMPTS[:2], plain)
    mixed = llm.generate(PROMPTS[:4], [plain, plain, params(), params(prompt_logprobs=0)])

    assert [one.outputs[0] for one in alone] == [one.outputs[0] for one in mixed[:2]]
    assert mixed[0].prompt_logprobs is None
    assert {len(one) for one in scores_of(mixed[3])[1:] if one} == {1}


def test_prompt_of_one_token_has_nothing_to_score(llm: LLM) -> None:
    [answer] = llm.generate([[65]], params(max_tokens=1))

    assert answer.prompt_logprobs == [None]


def test_range_is_that_of_logprobs() -> None:
    params(prompt_logprobs=20)
    for value in (-1, 21, 1.5):
        with pytest.raises(InvalidRequest, match="prompt_logprobs"):
            params(prompt_logprobs=value)
