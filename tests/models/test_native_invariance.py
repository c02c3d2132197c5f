"""Tokens and log probabilities of a request do not depend, bit by bit, on how the engine ran it.

Each request is answered once alone: one thread, no chunks, no cache, nobody beside it. Then all are
answered together, under every option that decides what shares a step. Half of the requests draw, as
a draw moves with any bit of a row of logits, and all tell log probabilities, which are those bits.
"""

from functools import cache, partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models.network_builders import TINY, random_prompt, random_tensors
from models.real_engine import RealRun, default_model_path, make_request, run_requests
from native_kernels import PATHS, backend

from everbatch.engine.engine import EngineRequest
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.kernels import _native
from everbatch.kernels.native import NativeKernels
from everbatch.models.config import ModelConfig
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model
from everbatch.scheduler.config import SchedulerConfig

Answer = tuple[list[int], list[TokenLogprobs | None]]

MAX_REQUESTS = 64
THREADS = [1, 2, 4]
ROOMY, TIGHT = 1_400, 45
"""KV blocks of four tokens: more than enough, and too few for all."""

# Each with what shows that it did what it is for.
OPTIONS = {
    "64 together": {"max_num_batched_tokens": 4_096},
    "three at a time": {"max_num_seqs": 3},
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"long_prefill_token_threshold": 7},
    "steps of 33 tokens": {"max_num_batched_tokens": 33},
    "prefix hits": {"enable_prefix_caching": True, "max_num_seqs": 20},
    "recompute": {"num_blocks": TIGHT, "admission": "now", "enable_prefix_caching": False},
    "recompute of tails": {"num_blocks": TIGHT, "admission": "now", "preemption_extent": "tail"},
    "swap": {
        "num_blocks": TIGHT,
        "admission": "now",
        "preemption_mode": "swap",
        "num_host_blocks": ROOMY,
    },
    "static batches": {"batching": "static", "max_num_seqs": 24},
}


def make_requests(config: ModelConfig, count: int = MAX_REQUESTS) -> list[EngineRequest]:
    """Prompts of 1 to 60 tokens, every third with the beginning of another one."""
    shared, requests = random_prompt(config, 24, seed=0), []
    for number in range(count):
        prompt = random_prompt(config, 1 + number * 7 % 60, seed=number + 1)
        if number % 3 == 0:
            prompt = shared + prompt[:20]
        sampling = SamplingParams(
            temperature=number % 2,
            top_p=0.9 if number % 4 == 1 else 1.0,
            repetition_penalty=1.2 if number % 5 == 0 else 1.0,
            seed=number,
            max_tokens=4 + number % 9,
            ignore_eos=True,
            logprobs=number % 4,
        )
        requests.append(make_request(f"r{number}", prompt, sampling))
    return requests


@cache
def tiny_network(num_threads: int, path: str = PATHS[0]) -> LlamaForCausalLM:
    return LlamaForCausalLM(TINY, random_tensors(TINY), backend(path, num_threads))


def run(network: LlamaForCausalLM, requests: list[EngineRequest], **options: object) -> RealRun:
    settings = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "block_size": 4,
        "num_blocks": ROOMY,
        "enable_prefix_caching": False,
        **options,
    }
    return run_requests(network, SchedulerConfig(**settings), requests)


def answers(run_: RealRun) -> dict[str, Answer]:
    return {name: (text, run_.logprobs[name]) for name, text in run_.texts.items()}


@cache
def alone(path: str = PATHS[0]) -> dict[str, Answer]:
    network = tiny_network(1, path)
    found: dict[str, Answer] = {}
    for request in make_requests(TINY):
        found |= answers(run(network, [request], max_num_seqs=1))
    return found


def assert_did_what_it_is_for(option: str, run_: RealRun) -> None:
    most = {"64 together": 64, "three at a time": 3, "static batches": 24}.get(option)
    if most is not None:
        assert run_.most_together == most
    if option == "prefix hits":
        assert run_.num_hit_tokens > 100
    way = {"recompute": "recompute", "recompute of tails": "tail", "swap": "swap"}.get(option)
    if way is not None:
        assert run_.ways[way] > 0
    assert (run_.num_recomputed_tokens > 0) == (way in ("recompute", "tail"))


@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.parametrize("option", OPTIONS)
def test_answers_are_those_of_each_request_alone(option: str, num_threads: int) -> None:
    found = run(tiny_network(num_threads), make_requests(TINY), **OPTIONS[option])

    assert_did_what_it_is_for(option, found)
    assert answers(found) == alone()
    assert all(logprobs is not None for _, row in answers(found).values() for logprobs in row)


@pytest.mark.parametrize("left_out", _native.optimisations())
def test_answers_are_the_same_without_an_optimisation(left_out: str) -> None:
    kernels = partial(NativeKernels, runtime=_native.Runtime(2, PATHS[0], None, [left_out]))
    network = LlamaForCausalLM(TINY, random_tensors(TINY), kernels)

    assert answers(run(network, make_requests(TINY), **OPTIONS["64 together"])) == alone()


@pytest.mark.parametrize("path", PATHS[1:])
def test_other_paths_keep_that_too(path: str) -> None:
    for option in ("64 together", "chunks of 7", "swap"):
        found = run(tiny_network(2, path), make_requests(TINY), **OPTIONS[option])

        assert answers(found) == alone(path)


def test_each_request_has_an_answer_of_its_own() -> None:
    """Or the tests above would compare nothing."""
    assert len({str(answer) for answer in alone().values()}) == MAX_REQUESTS


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.lists(st.integers(0, MAX_REQUESTS - 1), min_size=1, max_size=MAX_REQUESTS, unique=True),
    st.sampled_from(THREADS),
    st.integers(1, 64),
    st.integers(1, 200),
    st.integers(0, 30),
    st.sampled_from([1, 3, 4, 16]),
    st.booleans(),
    st.sampled_from(["recompute", "swap"]),
)
def test_any_batch_in_any_pieces_gives_the_answers_of_each_request_alone(
    chosen: list[int],
    num_threads: int,
    max_num_seqs: int,
    budget: int,
    chunk: int,
    block_size: int,
    prefix_caching: bool,
    mode: str,
) -> None:
    requests = make_requests(TINY)
    found = run(
        tiny_network(num_threads),
        [requests[number] for number in chosen],
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        long_prefill_token_threshold=chunk,
        block_size=block_size,
        num_blocks=300 // block_size,
        enable_prefix_caching=prefix_caching,
        preemption_mode=mode,
        num_host_blocks=800 // block_size,
        admission="now",
    )

    assert answers(found) == {f"r{number}": alone()[f"r{number}"] for number in chosen}


# A segment has 256 positions, a tile 64: these have several, and end next to their ends.
LONG_PROMPTS = [700, 257, 63, 512, 255, 128, 430, 1]
LONG_OPTIONS = {
    "together": {"max_num_batched_tokens": 2_500},
    "chunks of 100": {"long_prefill_token_threshold": 100},
    "prefix hits": {"enable_prefix_caching": True, "max_num_seqs": 2},
    "recompute": {"num_blocks": 60, "admission": "now"},
    "swap": {
        "num_blocks": 60,
        "admission": "now",
        "preemption_mode": "swap",
        "num_host_blocks": 300,
    },
}


def make_long_requests() -> list[EngineRequest]:
    """Prompts that begin alike, each with a draw that has a seed of its own."""
    shared = random_prompt(TINY, 300, seed=99)
    requests = []
    for number, length in enumerate(LONG_PROMPTS):
        sampling = SamplingParams(
            temperature=1.0, seed=number, max_tokens=12, ignore_eos=True, logprobs=2
        )
        prompt = (shared + random_prompt(TINY, length, seed=number))[:length]
        requests.append(make_request(f"long{number}", prompt, sampling))
    return requests


@cache
def long_alone() -> dict[str, Answer]:
    network, found = tiny_network(1), {}
    for request in make_long_requests():
        found |= answers(run(network, [request], max_num_seqs=1, num_blocks=60, block_size=16))
    return found


@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.parametrize("option", LONG_OPTIONS)
def test_long_contexts_keep_that_too(option: str, num_threads: int) -> None:
    options = {"num_blocks": 300, "block_size": 16, **LONG_OPTIONS[option]}
    found = run(tiny_network(num_threads), make_long_requests(), **options)

    assert found.num_hit_tokens > 300 or option != "prefix hits"
    assert found.ways[option] > 0 or option not in ("recompute", "swap")
    assert answers(found) == long_alone()


@cache
def default_network(num_threads: int) -> LlamaForCausalLM:
    loaded = load_model(default_model_path())
    return LlamaForCausalLM(loaded.config, loaded.tensors, backend(num_threads=num_threads))


@cache
def default_alone() -> dict[str, Answer]:
    network = default_network(1)
    requests = make_requests(network.config)
    return {
        name: answer
        for request in requests
        for name, answer in answers(run(network, [request], max_num_seqs=1)).items()
    }


@pytest.mark.model
@pytest.mark.full
@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.parametrize("option", OPTIONS)
def test_the_default_model_keeps_that(option: str, num_threads: int) -> None:
    network = default_network(num_threads)
    found = run(network, make_requests(network.config), **OPTIONS[option])

    assert_did_what_it_is_for(option, found)
    assert answers(found) == default_alone()
