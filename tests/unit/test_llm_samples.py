"""Samples, priorities, tenants and queue limits through the Python API, on a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import write_model

from everbatch import LLM, SamplingParams
from everbatch.base.errors import InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=64)


def idle(llm: LLM) -> bool:
    stats = llm.real.engine.stats()
    return (
        not llm.real.engine.has_work
        and stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    )


def test_samples_of_a_prompt_are_its_outputs_and_the_first_is_the_one_without_others(
    llm: LLM,
) -> None:
    params = SamplingParams(seed=7, max_tokens=12)
    prompts = ["hello", "other"]
    alone = [answer.outputs[0].text for answer in llm.generate(prompts, params)]

    answers = llm.generate(prompts, replace(params, n=3))

    for answer, text in zip(answers, alone, strict=True):
        assert [one.index for one in answer.outputs] == [0, 1, 2]
        assert answer.outputs[0].text == text
        assert len({one.text for one in answer.outputs}) == 3
        assert {one.finish_reason for one in answer.outputs} == {"length"}
        assert answer.finished
    assert idle(llm)


def test_samples_are_repeatable_whatever_runs_beside_them(llm: LLM) -> None:
    params = SamplingParams(seed=7, max_tokens=12, n=4)
    [alone] = llm.generate("hello", params)

    [beside, *_] = llm.generate(["hello", *["x" * size for size in range(1, 20)]], params)

    assert [one.text for one in beside.outputs] == [one.text for one in alone.outputs]


def test_sample_whose_stop_string_is_found_ends_alone(llm: LLM) -> None:
    params = SamplingParams(seed=7, max_tokens=12, n=3)
    [free] = llm.generate("hello", params)
    stop = free.outputs[1].text[4:7]
    assert stop not in free.outputs[0].text + "|" + free.outputs[2].text

    [answer] = llm.generate("hello", replace(params, stop=stop))

    assert [one.finish_reason for one in answer.outputs] == ["length", "stop", "length"]
    assert answer.outputs[1].text == free.outputs[1].text.partition(stop)[0]
    assert answer.outputs[1].stop_reason == stop
    assert [answer.outputs[k].text for k in (0, 2)] == [free.outputs[k].text for k in (0, 2)]
    assert idle(llm)


def test_finished_is_told_once_all_samples_have_ended(llm: LLM) -> None:
    told: list[tuple[int, list[str | None]]] = []

    llm.generate(
        ["a", "b"],
        [SamplingParams(max_tokens=9, n=3), SamplingParams(max_tokens=2)],
        on_finished=lambda index, one: told.append(
            (index, [output.finish_reason for output in one.outputs])
        ),
    )

    assert told == [(1, ["length"]), (0, ["length"] * 3)]


def test_more_samples_than_slots_are_refused(model: Path) -> None:
    llm = LLM(model, max_num_seqs=2, num_blocks=64)

    assert len(llm.generate("x", SamplingParams(max_tokens=1, n=2))[0].outputs) == 2
    with pytest.raises(InvalidRequest, match="n is 3, at most max_num_seqs 2"):
        llm.generate("x", SamplingParams(max_tokens=1, n=3))


def order_of_ends(llm: LLM, num_prompts: int, **standing: object) -> list[int]:
    ended: list[int] = []
    params = SamplingParams(temperature=0, max_tokens=3)
    prompts = [f"prompt {number}" for number in range(num_prompts)]
    llm.generate(prompts, params, on_finished=lambda index, _: ended.append(index), **standing)
    return ended


def test_lower_priority_ends_first_under_that_policy(model: Path) -> None:
    llm = LLM(model, max_num_seqs=1, num_blocks=64, policy="priority")

    assert order_of_ends(llm, 4, priority=[3, 0, -1, 2]) == [2, 1, 3, 0]


def test_tenants_share_under_vtc(model: Path) -> None:
    tenants = {"heavy": {"weight": 1}, "light": {"weight": 1}}
    llm = LLM(model, max_num_seqs=1, num_blocks=64, policy="vtc", tenants=tenants)

    ended = order_of_ends(llm, 4, tenant=["heavy", "heavy", "heavy", "light"])

    assert ended.index(3) < ended.index(2)


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        ({"priority": [1, 0]}, "priority is 1, but the policy is fcfs"),
        ({"priority": [0]}, "priority must be a list of one for each of 2 prompts"),
        ({"priority": ["high", 0]}, "priority must hold integers, not 'high'"),
        ({"tenant": "a"}, "tenant must be a list of one for each of 2 prompts"),
        ({"tenant": [1, 2]}, "tenant must hold text, not 1"),
    ],
)
def test_bad_standing_is_refused(llm: LLM, standing: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        llm.generate(["a", "b"], GREEDY, **standing)

    assert llm.real.engine.stats().num_arrived == 0


@pytest.mark.parametrize("limit", [{"max_queue_requests": 2}, {"max_queue_tokens": 20}], ids=str)
def test_prompts_beyond_the_queue_s_limit_follow_when_there_is_room(
    model: Path, limit: dict[str, int]
) -> None:
    llm = LLM(model, max_num_seqs=2, num_blocks=64, **limit)

    answers = llm.generate(["prompt"] * 9, GREEDY)

    assert {answer.outputs[0].finish_reason for answer in answers} == {"length"}
    assert llm.real.engine.stats().num_rejected == 0


def test_prompt_that_no_queue_can_hold_fails_alone(model: Path) -> None:
    llm = LLM(model, num_blocks=64, max_queue_tokens=5)

    answers = llm.generate(["short", "much too long", "short"], GREEDY)

    assert [answer.outputs[0].finish_reason for answer in answers] == ["length", "error", "length"]
    assert "max_queue_tokens 5" in str(answers[1].outputs[0].error)
    assert all(answer.finished for answer in answers)
