"""What llama.cpp's and vLLM's suites ask of a text: seeds, slots, batches, memory for all.

Numbers are theirs where there are some. By the Python API, which runs what the server runs, on the
native kernels: they alone say the same to the bit in every batch.
"""

from pathlib import Path

import pytest
from tiny_model import write_model

from everbatch import LLM, RequestOutput, SamplingParams

pytest.importorskip("everbatch.kernels._native", reason="the native kernels were not built")

PROMPTS = [f"I believe the meaning of life is {number}" for number in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def text_of(answer: RequestOutput) -> str:
    return answer.outputs[0].text


@pytest.mark.parametrize("num_slots", [1, 2])
def test_one_seed_gives_one_text_and_others_give_others(model: Path, num_slots: int) -> None:
    """llama.cpp: seed 42 four times is equal with 1 and with 2 slots, other seeds differ."""
    llm = LLM(model, num_blocks=64, max_num_seqs=num_slots)
    same = SamplingParams(seed=42, temperature=1, max_tokens=8)
    others = [SamplingParams(seed=seed, temperature=1, max_tokens=8) for seed in range(4)]

    assert len({text_of(one) for one in llm.generate(PROMPTS[:1] * 4, same)}) == 1
    assert len({text_of(one) for one in llm.generate(PROMPTS[:1] * 4, others)}) == 4


def test_a_batch_of_any_size_gives_one_text(model: Path) -> None:
    """llama.cpp: batches of 16 and of 32 tokens are equal at temperature 0."""
    greedy = SamplingParams(temperature=0, max_tokens=32)
    texts = [
        [
            text_of(one)
            for one in LLM(model, num_blocks=64, max_num_batched_tokens=size).generate(
                PROMPTS, greedy
            )
        ]
        for size in (16, 32, 512)
    ]

    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    "num_outputs", [(80, 40, 80, 80), (70, 70, 70, 70), (90, 90, 40, 90), (90, 90, 40, 75)]
)
def test_a_pool_for_256_tokens_serves_all_who_fit_alone(
    model: Path, num_outputs: tuple[int, ...]
) -> None:
    """llama.cpp with one cache for 4 slots ends all, or the long ones, of the second and third row.
    Here those who yield come back: everybody is answered whole, with the text of a larger pool."""
    params = [SamplingParams(temperature=0, max_tokens=one, ignore_eos=True) for one in num_outputs]
    small = LLM(model, num_blocks=16, block_size=16, admission="now")
    large = LLM(model, num_blocks=256)

    answers = small.generate(PROMPTS[:4], params)

    assert [len(one.outputs[0].token_ids) for one in answers] == list(num_outputs)
    assert {one.outputs[0].finish_reason for one in answers} == {"length"}
    assert list(map(text_of, answers)) == list(map(text_of, large.generate(PROMPTS[:4], params)))


@pytest.mark.parametrize("num_others", [0, 1, 5, 11])
def test_a_needle_has_the_same_text_and_scores_in_every_company(
    model: Path, num_others: int
) -> None:
    """vLLM's batch invariance: text, and log probabilities to the bit, of one among N."""
    llm = LLM(model, num_blocks=256, max_num_seqs=16)
    needle = SamplingParams(temperature=0, max_tokens=24, logprobs=5)
    others = SamplingParams(temperature=1, seed=1, max_tokens=40)
    company = [f"{'company ' * (number % 4)}{number}" for number in range(num_others)]

    [alone] = llm.generate("a needle", needle)
    among = llm.generate([*company, "a needle"], [*[others] * num_others, needle])[-1]

    assert alone.outputs[0].token_ids == among.outputs[0].token_ids
    assert alone.outputs[0].logprobs == among.outputs[0].logprobs
