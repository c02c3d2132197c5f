"""Makes a profile of a log of requests: fits to the first that end, and predicts the others.

Belongs here: what is seen and what is not, errors, what is told. Not here: prices (request_rounds),
runs (request_runs), reading (request_log). Called by the command line.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
from everbatch.calibration.data_sheet import sheet_prices
from everbatch.calibration.fit import PRICES
from everbatch.calibration.request_log import RecordedRequest, RequestLog
from everbatch.calibration.request_rounds import MIN_REQUESTS, Rounds
from everbatch.calibration.request_runs import RecordedRun, SimulatedStamps, run_requests
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.profile import Profile
from everbatch.workload.scenario import Scenario

SHARE = 0.35
"""Of the requests, in the order in which they ended: those that are fitted to."""
MEASURES = ("ttft", "tpot", "e2e")
POINTS = ("mean", "p50", "p90", "p95", "p99")

Errors = dict[str, dict[str, float]]
"""By measure and point: simulated / recorded - 1."""


@dataclass(frozen=True, slots=True)
class RequestCalibration:
    """A profile and what it is worth."""

    profile: Profile
    sheet: Prices | None
    """What the fit leaned on."""
    num_fitted: int
    """Requests that had ended before the cut."""
    num_held_out: int
    num_rounds: int
    errors: dict[str, Errors]
    """Of the requests held out, of all."""
    num_preemptions: int
    num_outside: dict[str, int]
    """Steps of the whole run outside the region, by what."""
    num_steps: int
    notes: list[str]

    @property
    def prices(self) -> Prices:
        return self.profile.prices

    def facts(self) -> dict[str, object]:
        """Give everything for programs."""
        return {
            "prices_ns": asdict(self.prices),
            "data_sheet_ns": None if self.sheet is None else asdict(self.sheet),
            "num_fitted": self.num_fitted,
            "num_held_out": self.num_held_out,
            "num_rounds": self.num_rounds,
            "errors": self.errors,
            "num_preemptions": self.num_preemptions,
            "region": {name: list(seen) for name, seen in self.profile.region.ranges.items()},
            "num_steps": self.num_steps,
            "num_outside": self.num_outside,
            "notes": self.notes,
        }


def calibrate_requests(
    log: RequestLog,
    scenario: Scenario,
    version: str,
    share: float = SHARE,
    tell: Callable[[int], None] | None = None,
) -> RequestCalibration:
    """Fit a profile to the first `share` of a log; ConfigError says what it lacks.

    The scenario tells the engine's options, and its device and model where it has them. `tell`
    hears how many rounds are done.
    """
    cut = _cut(log, share)
    sheet = sheet_prices(scenario.hardware, scenario.model)
    rough = _rough_prices(log.requests)
    # The fixed parts alone: each is what a log tells least of.
    leaning = sheet or Prices(rough.decode_step, rough.prompt_step)
    prices, num_rounds = Rounds(log, scenario, cut, leaning, tell).settle(sheet or rough)
    whole = run_requests(
        scenario, log.requests, FittedStepTime(prices, Region()), has_queued=log.has_queued
    )
    seen = [w for w, end in zip(whole.record.works, whole.record.ends, strict=True) if end <= cut]
    region = Region.of(seen)
    held_out = [one.last_ns > cut for one in log.requests]
    everybody = [True] * len(held_out)
    errors = {
        "held out": stamp_errors(log.requests, whole.stamps, held_out),
        "all": stamp_errors(log.requests, whole.stamps, everybody),
    }
    outside = _outside(region, whole)
    profile = Profile(
        prices,
        region,
        {f"{m}_{p}": round(e, 6) for m, of in errors["held out"].items() for p, e in of.items()},
        log.name,
        {
            "everbatch": version,
            "logs": [{"file": log.name, "date": log.date, "config": asdict(scenario.engine)}],
            "share": share,
        },
    )
    return RequestCalibration(
        profile,
        sheet,
        len(held_out) - sum(held_out),
        sum(held_out),
        num_rounds,
        errors,
        whole.num_preemptions,
        outside,
        len(whole.record.works),
        _notes(log, sheet, prices),
    )


def stamp_errors(
    requests: Sequence[RecordedRequest],
    stamps: Sequence[SimulatedStamps],
    chosen: Sequence[bool],
) -> Errors:
    """Compare a whole run with what was recorded, over the chosen requests, of which one at least.

    TTFT and E2E count from when the engine knew of a request; TPOT is of those with two outputs.
    """
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in MEASURES}
    for one, stamp, is_chosen in zip(requests, stamps, chosen, strict=True):
        if not is_chosen:
            continue
        assert stamp.first_ns is not None and stamp.last_ns is not None
        pairs = {
            "ttft": (stamp.first_ns - stamp.queued_ns, one.ttft_ns),
            "e2e": (stamp.last_ns - stamp.queued_ns, one.e2e_ns),
        }
        num_gaps = one.spec.output_tokens - 1
        if num_gaps:
            gaps = (stamp.last_ns - stamp.first_ns, one.decode_ns)
            pairs["tpot"] = (gaps[0] / num_gaps, gaps[1] / num_gaps)  # type: ignore[assignment]
        for name, (simulated, recorded) in pairs.items():
            times[name][0].append(simulated)
            times[name][1].append(recorded)
    return {
        name: {point: _at(simulated, point) / _at(recorded, point) - 1 for point in POINTS}
        for name, (simulated, recorded) in times.items()
        if recorded
    }


def _cut(log: RequestLog, share: float) -> int:
    """Give the moment by which so many requests had ended, or more, if several did at once."""
    ends = sorted(one.last_ns for one in log.requests)
    number = int(share * len(ends))
    if number < MIN_REQUESTS or ends[number - 1] == ends[-1]:
        raise ConfigError(
            f"{log.name} has {len(ends):,} requests, of which {share:.0%} are {number:,}: a fit "
            f"needs {MIN_REQUESTS} that have ended, and some that it does not see: take another "
            "share, or a longer log"
        )
    return ends[number - 1]


def _rough_prices(requests: Sequence[RecordedRequest]) -> Prices:
    """Give prices to start from where no data sheet is known.

    The fastest decodes tell a step, the fastest first token a token of a prompt, about.
    """
    gaps = [one.decode_ns / (one.spec.output_tokens - 1) for one in requests if one.decode_ns]
    step = min(gaps, default=1e6)
    token = min(one.ttft_ns / one.spec.prompt.num_tokens for one in requests)
    return Prices(step, step, prompt_token=token / 2)


def _at(times: Sequence[float], point: str) -> float:
    if point == "mean":
        return float(np.mean(times))
    return float(np.percentile(times, int(point[1:])))


def _outside(region: Region, run: RecordedRun) -> dict[str, int]:
    counts: dict[str, int] = {}
    for work in run.record.works:
        for name in region.outside(work):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _notes(log: RequestLog, sheet: Prices | None, prices: Prices) -> list[str]:
    """Say in sentences what limits the profile."""
    notes = [
        f"{counted(count, 'request')} left out, though the engine served them: {reason}"
        for reason, count in log.left_out.items()
    ]
    if sheet is None:
        notes.append(
            "without [hardware] and [model] the fit leans on no data sheet, but for the two fixed "
            "parts on the fastest decode of the log: prices of counts that move together may trade "
            "places"
        )
    if not log.has_queued:
        notes.append(
            "the log does not say when the engine learned of a request: waits count from arrival"
        )
    zeros = [name for name in PRICES[:-1] if getattr(prices, name) == 0]
    if zeros:
        notes.append(f"{', '.join(zeros)}: 0, costs nothing that can be told from the rest")
    return notes
