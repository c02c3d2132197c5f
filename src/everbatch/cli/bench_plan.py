"""Makes of the flags of `everbatch bench serve` the plan of a measurement.

Belongs here: which flags go together, and their defaults that depend on others. ConfigError says
what does not fit and what does.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import did_you_mean, shown
from everbatch.base.units import NS_PER_S
from everbatch.cli.bench_options import DEFAULT_NUM_PROMPTS, ENDPOINTS
from everbatch.cli.server_url import base_url
from everbatch.loadgen.figures import GOALS, FigureOptions
from everbatch.loadgen.prompt_file import PromptFile
from everbatch.loadgen.run import RunSettings
from everbatch.loadgen.schedule import (
    Extent,
    LengthRange,
    Pace,
    Ramp,
    content_of,
    synthetic_requests,
)
from everbatch.loadgen.session import Plan
from everbatch.loadgen.target import Target
from everbatch.workload.sources import RequestSource
from everbatch.workload.traces.formats import open_trace
from everbatch.workload.traces.requests import TraceRequests
from everbatch.workload.traces.selection import Selection

RANDOM = "random"
MAX_GOAL_MS = 1e12

Given = dict[str, Any]


def make_plan(given: Given, more_goals: Sequence[str] = ()) -> Plan:
    """Read all flags; `more_goals` are those that stand behind --goodput, as vLLM has them."""
    endpoint = ENDPOINTS[given["endpoint"]]
    prompt_file = _prompt_file(given, is_chat=endpoint == "chat")
    if given["token_ids"] is not None and (endpoint == "chat" or prompt_file is not None):
        raise ConfigError("--token-ids goes with --endpoint completions and --dataset random")
    goals = _goals([*given["goals"], *more_goals], given["goals"])
    return Plan(
        target=Target.at(base_url(given["url"]), given["api_key"] or None),
        endpoint="chat" if endpoint == "chat" else "completions",
        source=_source(given, prompt_file),
        model=given["model"],
        prompt_file=prompt_file,
        token_ids=given["token_ids"],
        temperature=given["temperature"],
        ignore_eos=given["ignore_eos"],
        extra_body=given["extra_body"] or {},
        cancel_share=given["cancel_share"],
        seed=given["seed"],
        settings=_settings(given),
        figures=FigureOptions(given["percentiles"], goals, given["count_from"], given["detailed"]),
        facts=_facts(given),
    )


def _prompt_file(given: Given, *, is_chat: bool) -> PromptFile | None:
    if given["dataset"] == RANDOM:
        return None
    if given["trace"] is not None:
        raise ConfigError("--dataset and --trace: both say what prompts are, give one of them")
    return PromptFile(Path(given["dataset"]), is_chat=is_chat)


def _source(given: Given, prompt_file: PromptFile | None) -> Callable[[], RequestSource]:
    """Give what makes the requests, having found what cannot be."""
    if given["trace"] is not None:
        return _of_trace(given)
    if given["speed_up"] != 1:
        raise ConfigError("--speed-up goes with --trace: else give another --request-rate")
    pace = Pace(given["request_rate"], given["burstiness"], _ramp(given))
    extent = Extent(_num_prompts(given, prompt_file), _nanoseconds(given["duration"]))
    is_open = pace.rate is not None or pace.ramp is not None
    if extent.num_requests is None and not is_open and given["max_concurrency"] is None:
        raise ConfigError(
            "--duration with --request-rate inf has no end of requests: give --num-prompts, "
            "--request-rate or --max-concurrency"
        )
    content = content_of(
        LengthRange(*given["input_len"]),
        LengthRange(*given["output_len"]),
        given["prefix_len"],
        given["num_prefixes"],
    )
    return lambda: synthetic_requests(pace, content, extent, given["seed"])


def _of_trace(given: Given) -> Callable[[], RequestSource]:
    given_with_trace = {
        "--request-rate": given["request_rate"] is not None,
        "--burstiness": given["burstiness"] != 1,
        "--ramp-up-strategy": given["ramp_up_strategy"] is not None,
        "--prefix-len": given["prefix_len"] != 0,
    }
    for flag, is_given in given_with_trace.items():
        if is_given:
            raise ConfigError(f"{flag} does not go with --trace, which has arrivals and prompts")
    duration = given["duration"]
    selection = Selection(
        # In times of the trace.
        duration_ns=None if duration is None else _nanoseconds(duration * given["speed_up"]),
        limit=given["num_prompts"],
        speed=given["speed_up"],
        seed=given["seed"],
    )
    trace = open_trace(given["trace"], given["trace_format"])
    if not trace.has_arrivals:
        raise ConfigError(f"--trace {given['trace']} has lengths only, no arrivals")
    return lambda: TraceRequests(trace, selection)


def _ramp(given: Given) -> Ramp | None:
    strategy = given["ramp_up_strategy"]
    start, end = given["ramp_up_start_rps"], given["ramp_up_end_rps"]
    if strategy is None:
        if start is not None or end is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return None
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if given["request_rate"] is not None:
        raise ConfigError("--ramp-up-strategy and --request-rate: give one of them")
    return Ramp(strategy, start, end)


def _num_prompts(given: Given, prompt_file: PromptFile | None) -> int | None:
    if given["num_prompts"] is not None:
        return int(given["num_prompts"])
    if given["duration"] is not None and given["ramp_up_strategy"] is None:
        return None
    return DEFAULT_NUM_PROMPTS if prompt_file is None else len(prompt_file)


def _settings(given: Given) -> RunSettings:
    is_open = given["trace"] is not None or given["ramp_up_strategy"] is not None
    is_closed = given["request_rate"] is None and given["max_concurrency"] is not None
    return RunSettings(
        max_concurrency=given["max_concurrency"],
        is_closed=is_closed and not is_open,
        num_retries=given["num_retries"],
        timeout_ns=_nanoseconds(given["timeout"]),
        duration_ns=_nanoseconds(given["duration"]),
    )


def _goals(written: Sequence[str], by_flag: Sequence[str]) -> dict[str, float]:
    """Read "ttft:500", several with commas or blanks between."""
    if written and not by_flag:
        raise ConfigError(f"{shown(written[0])} is no option: goals stand behind --goodput")
    goals: dict[str, float] = {}
    for part in " ".join(written).replace(",", " ").split():
        name, _, value = part.partition(":")
        if name not in GOALS:
            raise ConfigError(
                f"--goodput {shown(part)}: there is no {shown(name)}{did_you_mean(name, GOALS)}, "
                f"write NAME:MS with {', '.join(GOALS)}"
            )
        try:
            goal = float(value)
        except ValueError:
            goal = 0.0
        if not 0 < goal <= MAX_GOAL_MS:
            raise ConfigError(f"--goodput {shown(part)}: give a number of milliseconds above 0")
        goals[name] = goal
    return goals


def _facts(given: Given) -> Given:
    """Give what the result tells of the workload."""
    trace = given["trace"]
    rate = given["request_rate"]
    synthetic = {
        "request_rate": "inf" if rate is None else rate,
        "burstiness": given["burstiness"],
        "ramp_up_strategy": given["ramp_up_strategy"],
        "ramp_up_start_rps": given["ramp_up_start_rps"],
        "ramp_up_end_rps": given["ramp_up_end_rps"],
        "input_len": list(given["input_len"]),
        "output_len": list(given["output_len"]),
        "prefix_len": given["prefix_len"],
        "num_prefixes": given["num_prefixes"],
    }
    of_trace = {"trace": str(trace), "speed_up": given["speed_up"]}
    return {
        "dataset": given["dataset"] if trace is None else "trace",
        **(synthetic if trace is None else of_trace),
        "num_prompts": given["num_prompts"],
        "max_concurrency": given["max_concurrency"],
        "cancel_share": given["cancel_share"],
        "num_retries": given["num_retries"],
        "ignore_eos": given["ignore_eos"],
        "temperature": given["temperature"],
        "seed": given["seed"],
    }


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)
