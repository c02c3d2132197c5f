"""Our scheduler with vLLM's rules, against the log of a real vLLM run on an RTX 4090.

300 requests in 30 s overload the card; KV memory is full for two minutes. Predicted twice: from the
card's kernel profile and the engine's settings, with nothing fitted; and without a profile, from
the stamps of the first 35 % of the requests. Source of the data: LLMServingSim (MIT), vLLM 0.19.0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fidelity.row import Row, skipped, within

from everbatch import __version__
from everbatch.calibration.request_log import RequestLog, read_request_log, without_prefixes
from everbatch.calibration.request_runs import RecordedRun, run_requests
from everbatch.calibration.requests import SHARE, Errors, calibrate_requests, stamp_errors
from everbatch.costs.kernel_tables import KernelTableStepTime
from everbatch.costs.model import find_model
from everbatch.costs.roofline import RooflineOptions, RooflineStepTime
from everbatch.costs.work import StepTime
from everbatch.workload.scenario import Scenario, build_scenario

FOLDER = "llmservingsim_vllm_logs"
LOG = "RTX4090_Llama-3.1-8B__vllm_requests.jsonl"
PROFILE = "profile_RTX4090_Llama-3.1-8B_bf16_tp1"
SETTINGS = {
    "preset": "vllm-v1",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "max_model_len": 32768,
    "block_size": 16,
    "num_blocks": 2588,
}
"""As the run's meta data tells them; num_blocks is its num_gpu_blocks."""
MODEL, DEVICE = "llama-3.1-8b", "rtx-4090"

WITH_PROFILE = 0.01
PERCENTILES = 0.025
CALIBRATED = {"ttft": 0.03, "tpot": 0.017, "e2e": 0.022}
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "latency"}
OTHER_SHARES = (0.1, 0.2, 0.5)
TAILS = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Case:
    """The run and the engine that made it."""

    folder: Path
    log: RequestLog
    scenario: Scenario

    def run(
        self, step_time: StepTime, log: RequestLog | None = None, **engine: object
    ) -> "Outcome":
        """Predict the whole run, with other options of the engine where they are given."""
        log = log or self.log
        scenario = self.scenario.with_settings(f"{name}={value}" for name, value in engine.items())
        run = run_requests(scenario, log.requests, step_time)
        everybody = [True] * len(log.requests)
        return Outcome(run, stamp_errors(log.requests, run.stamps, everybody))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A predicted run beside the recorded one."""

    run: RecordedRun
    errors: Errors


def rows(traces: Path) -> list[Row]:
    """Compare the predictions with the log in `traces`."""
    folder = traces / FOLDER
    if not (folder / LOG).is_file():
        return [skipped("vLLM, RTX 4090", f"no {FOLDER}/{LOG} in {traces}")]
    case = read_case(folder)
    return [*_from_kernels(case), *_from_stamps(case), *_what_matters(case)]


def read_case(folder: Path) -> Case:
    """Read the log; which prompts begin alike comes from the file beside it."""
    tables = {
        "engine": SETTINGS,
        "hardware": {"name": DEVICE},
        "model": {"name": MODEL},
        "requests": [{"id": "none", "prompt_tokens": 1, "output_tokens": 1}],
    }
    return Case(folder, read_request_log(folder / LOG), build_scenario(tables, "vllm"))


def kernels(case: Case) -> KernelTableStepTime:
    """Give the card's own kernels."""
    num_layers = find_model(MODEL).num_layers
    assert num_layers is not None
    return KernelTableStepTime(case.folder / PROFILE, round(num_layers))


def _from_kernels(case: Case) -> list[Row]:
    outcome = case.run(kernels(case))
    what = "vLLM, kernel profile"
    return [
        *(
            within(f"{what}: mean {NAMES[name]}", of["mean"], WITH_PROFILE)
            for name, of in outcome.errors.items()
        ),
        *_tails(what, outcome.errors),
        Row(
            f"{what}: preemptions",
            None,
            outcome.run.num_preemptions,
            "",
            None,
            f"{len(outcome.run.record.works):,} steps",
        ),
    ]


def _tails(what: str, errors: Errors) -> list[Row]:
    """Give the worst of the percentiles, one row a measure."""
    found = []
    for name, of in errors.items():
        worst = max(TAILS, key=lambda point: abs(of[point]))
        told = ", ".join(f"{point} {of[point]:+.1%}" for point in TAILS)
        found.append(within(f"{what}: {NAMES[name]}, p50 to p99", of[worst], PERCENTILES, told))
    return found


def _from_stamps(case: Case) -> list[Row]:
    made = calibrate_requests(case.log, case.scenario, __version__)
    what = f"vLLM, first {made.num_fitted} requests"
    held_out = made.errors["held out"]
    return [
        within(
            f"{what}: mean {NAMES[name]}",
            of["mean"],
            CALIBRATED[name],
            f"{held_out[name]['mean']:+.1%} of the {made.num_held_out} that it did not see",
        )
        for name, of in made.errors["all"].items()
    ]


def _what_matters(case: Case) -> list[Row]:
    """Say what the prediction would be with less, or for another engine; nothing is promised."""
    device, model = case.scenario.hardware, case.scenario.model
    assert device is not None
    assert model is not None
    roofline = RooflineStepTime(device, model, RooflineOptions())
    bare = replace(case.scenario, hardware=None)
    measured = kernels(case)
    return [
        _told("vLLM, data sheet", case.run(roofline).errors),
        *(
            _told(
                f"vLLM, first {share:.0%} of the requests", _errors(case.log, case.scenario, share)
            )
            for share in OTHER_SHARES
        ),
        _told(f"vLLM, first {SHARE:.0%}, no data sheet", _errors(case.log, bare, SHARE)),
        _told(
            "vLLM, kernel profile, shared prefixes unknown",
            case.run(measured, without_prefixes(case.log)).errors,
        ),
        _told("what if: num_blocks 3,400", case.run(measured, num_blocks=3400).errors),
        _told(
            "what if: no prefix caching",
            case.run(measured, enable_prefix_caching="false").errors,
        ),
        _told("what if: admission now", case.run(measured, admission="now").errors),
    ]


def _errors(log: RequestLog, scenario: Scenario, share: float) -> Errors:
    return calibrate_requests(log, scenario, __version__, share).errors["all"]


def _told(name: str, errors: Mapping[str, Mapping[str, float]]) -> Row:
    means: Sequence[str] = [f"{NAMES[key]} {of['mean']:+.1%}" for key, of in errors.items()]
    return Row(name, None, None, "", None, ", ".join(means))
