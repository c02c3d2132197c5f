"""Benchmark: decodes beside long prompts, against what the steps' own FLOPs and bytes predict.

    python benchmarks/bench_mixed.py [MODEL] [--prompts 16] [--budget 512] [--json FILE]

Sixteen requests decode while prompts of 1,500 tokens come, one after the other. Each step is one
gap between two tokens of all sixteen. Its time is predicted from its own work: three prices, a
fixed one, one for a second of floor of products and of attention of chunks, one for a second of
floor of the decodes' keys and values (floor.py). The prices are fitted to steps of the same run
that are purely decodes or purely chunks; no mixed step is seen by the fit.

Fails (status 1) if the 99th percentile of the gaps is above AT_MOST times that of the predicted
ones, or if a decode ever waits for more than one step. Belongs here: workload, prices, comparison.
Not here: driving the engine (driven_engine.py), counting a step's work (everbatch.calibration).
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from alone import exit_status
from ceilings import CeilingProbe
from driven_engine import DrivenEngine, Recording, first_token_ns, request_spec
from floor import Ceilings, phases, shape_of
from harness import BenchmarkError
from positive_numbers import positive

from everbatch.base.units import NS_PER_S
from everbatch.calibration.steps import MeasuredSteps, read_log
from everbatch.costs.work import StepWork
from everbatch.kernels.cores import num_physical_cores
from everbatch.kernels.weights import NetworkShape
from everbatch.llm.llm import LLM
from everbatch.workload.requests import RequestSpec

NUM_DECODES, SHORT_PROMPT, NUM_OUTPUTS = 16, 32, 1500
LONG_PROMPT, NUM_PROMPTS = 1500, 16
BUDGET = 512
ROOM = 1.6
"""The next long prompt comes after so many times what one needs beside the decodes."""
AT_MOST = 1.15
PERCENTILE = 99
CONTEXT_GROUP = 2_048
"""Pure decodes whose contexts differ by less, in tokens of all rows, are one sample of the fit."""
DECODE_KV = "attention of decodes"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did, in seconds of floor, and how long it took."""

    work: StepWork
    other_s: float
    decode_kv_s: float
    seconds: float

    @property
    def is_mixed(self) -> bool:
        return self.work.num_decodes > 0 and self.work.num_chunks > 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a step costs, and a second of its floor."""

    fixed_s: float
    other: float
    decode_kv: float

    def seconds(self, step: Step) -> float:
        return self.fixed_s + self.other * step.other_s + self.decode_kv * step.decode_kv_s


def steps_of_log(
    lines: Sequence[str], name: str, shape: NetworkShape, ceilings: Ceilings
) -> list[Step]:
    """Give the steps of a log in which each has a line of its own."""
    return [_step(line, shape, ceilings) for line in read_log(lines, name).steps]


def fit(steps: Sequence[Step]) -> Prices:
    """Fit the prices to pure steps; the median of equal ones counts, relative errors are squared.

    BenchmarkError if there are no chunks, or no decodes of different contexts.
    """
    groups: dict[tuple[int, ...], list[Step]] = defaultdict(list)
    for step in steps:
        if not step.is_mixed:
            groups[_kind(step.work)].append(step)
    samples = [sorted(group, key=lambda step: step.seconds) for group in groups.values()]
    middle = [group[len(group) // 2] for group in samples]
    rows = np.array([[1.0, step.other_s, step.decode_kv_s] for step in middle])
    seconds = np.array([step.seconds for step in middle])
    if len(middle) < 3 or np.linalg.matrix_rank(rows) < 3:
        raise BenchmarkError(
            f"{len(middle)} kinds of pure steps are too few for three prices: give more --prompts"
        )
    weighted = rows / seconds[:, None]
    found = np.linalg.lstsq(weighted, np.ones(len(middle)), rcond=None)[0]
    return Prices(*map(float, found))


def compare(steps: Sequence[Step], prices: Prices) -> dict[str, Any]:
    """Give gaps of the sixteen, measured and predicted, from the first mixed step to the last."""
    mixed = [place for place, step in enumerate(steps) if step.is_mixed]
    if not mixed:
        raise BenchmarkError("no step was mixed: the decodes ended before the first long prompt")
    within = steps[mixed[0] : mixed[-1] + 1]
    gaps = np.array([step.seconds for step in within])
    predicted = np.array([prices.seconds(step) for step in within])
    is_mixed = np.array([step.is_mixed for step in within])
    p99, predicted_p99 = (float(np.percentile(values, PERCENTILE)) for values in (gaps, predicted))
    ratios = (gaps / predicted)[is_mixed]
    return {
        "steps": len(within),
        "mixed_steps": len(mixed),
        "least_decodes": min(step.work.num_decodes for step in within),
        "itl_p50_s": float(np.median(gaps)),
        "itl_p99_s": p99,
        "predicted_p99_s": predicted_p99,
        "p99_ratio": p99 / predicted_p99,
        "mixed_ratio_p50": float(np.median(ratios)),
        "mixed_ratio_p99": float(np.percentile(ratios, PERCENTILE)),
        "longest_s": float(gaps.max()),
        "longest_predicted_s": float(predicted.max()),
    }


def shortfalls(found: dict[str, Any]) -> list[str]:
    """Say what is not as promised."""
    failures = []
    if found["p99_ratio"] > AT_MOST:
        failures.append(
            f"p99 of the gaps is {found['p99_ratio']:.2f} times the predicted one, above {AT_MOST}"
        )
    if found["least_decodes"] < NUM_DECODES:
        failures.append(
            f"in a step only {found['least_decodes']} of {NUM_DECODES} decoded: the others waited "
            "for more than one chunk"
        )
    return failures


def study(model: str | None, num_prompts: int, budget: int) -> dict[str, Any]:
    """Run prompts alone, then beside the decodes, then alone again; give what was found."""
    shape = shape_of(model)
    driven, probe = _engine(model, budget, num_prompts), CeilingProbe(num_physical_cores())
    driven.run([request_spec(f"warm-up-{k}", k, 0, 256, 8) for k in range(NUM_DECODES)])
    probe.take()
    logs = {"alone": _alone(driven, num_prompts // 2 + 1)}
    specs = workload(_interval_ns(driven), num_prompts)
    last = [spec.id for spec in specs[NUM_DECODES:]]
    logs["beside"] = driven.run(specs, last)
    logs["alone again"] = _alone(driven, num_prompts // 2 + 1)
    probe.take()
    ceilings = probe.ceilings()
    steps = {
        name: steps_of_log(recording.log_lines(), name, shape, ceilings)
        for name, recording in logs.items()
    }
    prices = fit([step for of_run in steps.values() for step in of_run])
    return {
        "budget": budget,
        "num_decodes": NUM_DECODES,
        "num_prompts": num_prompts,
        "prompt_tokens": LONG_PROMPT,
        "ceilings": {"read": ceilings.read_gb_per_s, "matrix": ceilings.matrix_gflop_per_s},
        "prices": {
            "fixed_s": prices.fixed_s,
            "other": prices.other,
            "decode_kv": prices.decode_kv,
        },
        **compare(steps["beside"], prices),
    }


def print_found(found: dict[str, Any]) -> None:
    ms = {name: f"{value * 1e3:.1f} ms" for name, value in found.items() if name.endswith("_s")}
    print(
        f"{found['mixed_steps']} mixed steps of {found['steps']}; ITL p50 {ms['itl_p50_s']}, "
        f"p99 {ms['itl_p99_s']}, predicted {ms['predicted_p99_s']}: "
        f"{found['p99_ratio']:.3f} times\n"
        f"mixed steps by their own prediction: p50 {found['mixed_ratio_p50']:.3f} times, "
        f"p99 {found['mixed_ratio_p99']:.3f} times\n"
        f"longest gap {ms['longest_s']}; the longest step as predicted, of one chunk, "
        f"{ms['longest_predicted_s']}; in each step at least {found['least_decodes']} of "
        f"{NUM_DECODES} decoded"
    )


def workload(interval_ns: int, num_prompts: int) -> list[RequestSpec]:
    """Give the requests: those that decode, and from an interval on the long prompts."""
    decodes = [
        request_spec(f"decode-{k}", k, 0, SHORT_PROMPT, NUM_OUTPUTS) for k in range(NUM_DECODES)
    ]
    prompts = [
        request_spec(f"prompt-{k}", NUM_DECODES + k, (k + 1) * interval_ns, LONG_PROMPT, 1)
        for k in range(num_prompts)
    ]
    return [*decodes, *prompts]


def _step(line: MeasuredSteps, shape: NetworkShape, ceilings: Ceilings) -> Step:
    work = line.first
    # The log does not tell; a prompt's last chunk has one row more.
    work.num_logits = work.num_decodes
    parts = {part.name: part.seconds(ceilings) for part in phases(shape, work)}
    decode_kv_s = parts.pop(DECODE_KV)
    return Step(work, sum(parts.values()), decode_kv_s, line.duration_ns / line.count / NS_PER_S)


def _kind(work: StepWork) -> tuple[int, ...]:
    group = work.decode_context // CONTEXT_GROUP
    return work.num_decodes, group, work.prefill_tokens, work.prefill_context


def _alone(driven: DrivenEngine, num_prompts: int) -> Recording:
    """Run prompts one after the other, with nothing beside them."""
    recordings = [
        driven.run([request_spec(f"alone-{k}", k, 0, LONG_PROMPT, 1)]) for k in range(num_prompts)
    ]
    events = [event for recording in recordings for event in recording.events]
    return Recording(recordings[0].header, events, {})


def _interval_ns(driven: DrivenEngine) -> int:
    """Give the time from one long prompt to the next, by what one needs beside the decodes."""
    specs = workload(NS_PER_S // 2, 1)
    recording = driven.run(specs, [specs[-1].id])
    prompt = specs[-1].id
    return round(ROOM * (first_token_ns(recording.events)[prompt] - recording.due_ns[prompt]))


def _engine(model: str | None, budget: int, num_prompts: int) -> DrivenEngine:
    llm = LLM(
        model,
        kernels="native",
        max_num_batched_tokens=budget,
        max_num_seqs=NUM_DECODES + num_prompts,
        max_model_len=2048,
        num_blocks=(NUM_DECODES + 2) * 2048 // 16,
        enable_prefix_caching=False,
    )
    return DrivenEngine.of(llm)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--prompts", type=positive, default=NUM_PROMPTS, help="long prompts")
    parser.add_argument("--budget", type=positive, default=BUDGET, help="tokens a step")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    measured = partial(study, options.model, options.prompts, options.budget)
    return exit_status(measured, print_found, shortfalls, options.json)


if __name__ == "__main__":
    sys.exit(main())
