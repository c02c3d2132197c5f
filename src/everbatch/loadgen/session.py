"""A measurement from its plan to its figures: contact, prompts, run, summary.

Belongs here: the order in which these are put together. Called by the command line.
"""

import asyncio
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import uvloop

from everbatch.base.units import NS_PER_S, counted
from everbatch.loadgen.calls import BodyOptions, Calls, Endpoint
from everbatch.loadgen.clock import Clock, MonotonicClock
from everbatch.loadgen.connection import ConnectionPool
from everbatch.loadgen.contact import NUM_FIRST_WORDS, counted_scale, first_answer, served_model
from everbatch.loadgen.figures import FigureOptions, RunTimes, Summary, summarize, warnings
from everbatch.loadgen.prompt_file import PromptFile
from everbatch.loadgen.prompts import WORDS, Prompts, RandomTokenIds, RandomWords, Scale
from everbatch.loadgen.records import Record
from everbatch.loadgen.run import LoadRun, RunSettings, Watch, watched
from everbatch.loadgen.target import Target
from everbatch.workload.sources import RequestSource


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a measurement is told. `source` makes the requests of one run."""

    target: Target
    endpoint: Endpoint
    source: Callable[[], RequestSource]
    model: str | None = None
    """None: the one that the server lists first."""
    prompt_file: PromptFile | None = None
    token_ids: tuple[int, int] | None = None
    """Lowest and highest id of prompts that are token ids; None: they are words."""
    temperature: float | None = 0.0
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    cancel_share: float = 0.0
    seed: int = 0
    settings: RunSettings = field(default_factory=RunSettings)
    figures: FigureOptions = field(default_factory=FigureOptions)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the result tells of the plan."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A measurement that is over, perhaps before its end."""

    summary: Summary
    records: list[Record]
    times: RunTimes
    options: FigureOptions
    notes: list[str]
    is_interrupted: bool
    started_unix_ns: int


async def measure(plan: Plan, watch: Watch | None = None, clock: Clock | None = None) -> Finished:
    """Carry out a plan. NoContact if the server does not answer at all, ConfigError if a trace
    breaks in the middle; what happens to single requests is in the figures."""
    clock = clock or MonotonicClock()
    pool = ConnectionPool(plan.target, clock.now_ns)
    try:
        model = plan.model or await served_model(plan.target, pool)
        body = BodyOptions(plan.endpoint, model, plan.temperature, plan.ignore_eos, plan.extra_body)
        prompts, notes = await _prompts(plan, pool, body)
        source = plan.source()
        calls = Calls(plan.target, body, prompts, plan.cancel_share, plan.seed)
        run = LoadRun(source, calls, pool, plan.settings, clock)
        started = datetime.now(UTC)
        await watched(run, watch)
    finally:
        pool.close()
    times = RunTimes(run.start_ns, run.end_ns, run.cpu_ns)
    facts = {
        "date": started.isoformat(timespec="seconds"),
        "url": plan.target.url,
        "endpoint": plan.endpoint,
        "model_id": model,
        **plan.facts,
        "interrupted": run.is_interrupted,
    }
    summary = summarize(run.records, times, plan.figures, facts)
    notes = [*source.notes(), *calls.notes(), *notes, *warnings(summary)]
    if run.is_interrupted:
        told = f"{counted(len(run.records), 'request')} sent, {summary['unfinished']:,} unfinished"
        notes.append(f"interrupted: {told}")
    summary["notes"] = notes
    return Finished(
        summary, run.records, times, plan.figures, notes, run.is_interrupted, _unix_ns(started)
    )


def _unix_ns(time: datetime) -> int:
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1_000


async def _prompts(
    plan: Plan, pool: ConnectionPool, body: BodyOptions
) -> tuple[Prompts, list[str]]:
    """Make the prompts, having asked the server for one answer at least; and say what was found."""
    # A first answer of one token may be its end: the limit is what matters here.
    asking = replace(body, ignore_eos=False)
    if plan.prompt_file is not None or plan.token_ids is not None:
        await first_answer(plan.target, pool, asking, WORDS[:NUM_FIRST_WORDS])
        if plan.prompt_file is not None:
            return plan.prompt_file, []
        assert plan.token_ids is not None
        return RandomTokenIds(*plan.token_ids, plan.seed), []
    scale = await counted_scale(plan.target, pool, asking)
    if scale is None:
        note = "the server does not count the tokens of prompts: a word is taken as one token"
        return RandomWords(Scale(), plan.seed), [note]
    return RandomWords(scale, plan.seed), []


def allow_connections() -> None:
    """Raise the number of files that this process may have open as far as it may itself: each
    connection is one, and many systems begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may grant less than it says.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def run_measure(plan: Plan, watch: Watch | None = None) -> Finished:
    """Carry out a plan on an event loop of its own; Ctrl-C ends it early, with its figures."""
    allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(plan, watch))
