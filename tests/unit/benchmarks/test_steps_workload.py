"""Steps timed one by one: which of them count, and llama.cpp's own figures under the same names."""

import importlib.util
import json
import sys
from types import ModuleType

import pytest
import steps_workload
from provenance import ROOT
from steps_workload import MAX_NUM_BATCHED_TOKENS, NUM_DECODES, measure, num_outputs


def llama_steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "llama_steps", ROOT / "benchmarks" / "peers" / "llama_steps.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountedEngine:
    """Prefills under the budget, decodes for whoever is done; a step of `tokens` takes a time."""

    def __init__(self, clock: list[float], *, outputs_a_step: int = 1) -> None:
        self.clock = clock
        self.outputs_a_step = outputs_a_step
        self.requests: list[list[int]] = []  # prompt tokens to do, outputs to do

    def add(self, prompt_token_ids: list[int], outputs: int) -> None:
        self.requests.append([len(prompt_token_ids), outputs])

    def step(self) -> None:
        budget = MAX_NUM_BATCHED_TOKENS
        for request in self.requests:
            if request[0]:
                count = min(budget, request[0])
                request[0] -= count
                budget -= count
                request[1] -= not request[0]
            else:
                request[1] -= self.outputs_a_step
        chunks = budget < MAX_NUM_BATCHED_TOKENS
        self.clock[0] += 1.0 if chunks else 0.01 * len(self.requests)
        self.requests = [request for request in self.requests if request[1] > 0]

    def has_work(self) -> bool:
        return bool(self.requests)


def measured(monkeypatch: pytest.MonkeyPatch, batches: list[int], **how: int) -> dict[str, float]:
    clock = [0.0]
    monkeypatch.setattr(steps_workload.time, "perf_counter", lambda: clock[0])
    return measure(CountedEngine(clock, **how), batches, 128)


def test_decodes_are_the_steps_in_which_all_decode(monkeypatch):
    figures = measured(monkeypatch, [1, 32])

    assert figures == pytest.approx(
        {
            "decode_tokens_per_s_batch_1": 100.0,
            "prefill_tokens_per_s_batch_1": 128.0,
            # 4,096 tokens are 8 steps of 512, a second each.
            "decode_tokens_per_s_batch_32": 100.0,
            "prefill_tokens_per_s_batch_32": 512.0,
        }
    )


def test_an_engine_that_does_not_give_one_output_a_step_is_no_candidate(monkeypatch):
    with pytest.raises(RuntimeError, match="not one a step"):
        measured(monkeypatch, [1], outputs_a_step=8)


def test_outputs_leave_64_steps_in_which_all_decode():
    assert num_outputs(1, 128) == NUM_DECODES + 1
    assert num_outputs(32, 1000) == NUM_DECODES + 63


def rows(**changes: object) -> str:
    row = {"pp": 128, "tg": 64, "pl": 8, "speed_pp": 890.5, "speed_tg": 288.25, **changes}
    return f"noise\n{json.dumps(row)}\n"


def test_llama_cpps_rows_become_the_same_figures():
    assert llama_steps().figures(rows(), [8], 128) == {
        "decode_tokens_per_s_batch_8": 288.25,
        "prefill_tokens_per_s_batch_8": 890.5,
    }


@pytest.mark.parametrize("changes", [{"pl": 4}, {"pp": 64}, {"tg": 16}])
def test_a_row_of_other_sizes_is_no_figure(changes):
    with pytest.raises(RuntimeError, match="no row for batch 8 of 128 tokens"):
        llama_steps().figures(rows(**changes), [8], 128)


def test_llama_cpp_is_asked_for_the_same_work():
    argv = llama_steps().command("bench", "m.gguf", [1, 8], 128, 2)

    assert argv[0] == "bench"
    pairs = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert pairs == {
        "-m": "m.gguf",
        "-t": "2",
        "-c": str(8 * 192),
        "-b": "2048",
        "-ub": "512",
        "-npp": "128",
        "-ntg": "64",
        "-npl": "1,8",
        "--output-format": "jsonl",
    }


def test_a_failing_llama_cpp_fails_the_candidate(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llama_steps.py", "false", "m.gguf"])
    with pytest.raises(SystemExit) as ended:
        llama_steps().main()
    assert ended.value.code == 1
