"""[workload] of a scenario: a trace, or synthetic arrivals, in place of [[requests]].

`read_workload` gives a Workload, which makes a fresh source for each run. Belongs here: keys, their
defaults, which go together. Not here: what a source does. Times in the table are seconds, so a
clock that measures time is needed. Called by scenario.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.base.units import NS_PER_S
from everbatch.workload.arrivals import (
    ClosedRequests,
    Content,
    OpenRequests,
    all_at_once,
    evenly,
    gaps,
    renewals,
)
from everbatch.workload.clients import AS_THEY_ARE, Clients
from everbatch.workload.lengths import read_lengths
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import MAX_REQUESTS, MAX_TOKENS
from everbatch.workload.retries import Retries, RetryingRequests
from everbatch.workload.sources import RequestSource
from everbatch.workload.traces.formats import FORMATS, open_trace
from everbatch.workload.traces.requests import TraceRequests
from everbatch.workload.traces.selection import Selection

MAX_SECONDS = 1e9
MIN_SPEED, MAX_SPEED = 1e-6, 1e6
MIN_RATE, MAX_RATE = 1e-6, 1e9
MIN_SAMPLE = 1e-6
MAX_RETRIES = 20
MIN_BACKOFF, MAX_BACKOFF = 1e-3, 3600.0
MAX_USERS = 1_000_000
MAX_PREFIXES = 1_000_000
MIN_CV, MAX_CV = 1e-3, 100.0
"""But for 0, which is allowed."""
MAX_TRACE_ROWS = 1 << 40

ARRIVALS = ("poisson", "gamma", "uniform", "burst", "closed")
CLIENT_KEYS = ("max_tokens", "patience", "impatient", "deadline", "retries", "backoff")
TRACE_KEYS = (
    "trace",
    "format",
    "start",
    "window",
    "sample",
    "limit",
    "speed",
    "zeros",
    "prefixes",
    *CLIENT_KEYS,
)
_COMMON_KEYS = (
    "arrivals",
    "num_requests",
    "duration",
    "prompt",
    "output",
    "prefix_tokens",
    "num_prefixes",
    *CLIENT_KEYS,
)
_KEYS_OF = {
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "uniform": ("rate",),
    "burst": ("rate", "burst_size"),
    "closed": ("users", "think_time", "think_cv"),
}
WORKLOAD_KEYS = tuple(
    dict.fromkeys(
        (*TRACE_KEYS, *_COMMON_KEYS, *(key for keys in _KEYS_OF.values() for key in keys))
    )
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What [workload] asks for. `source` makes its requests anew; `title` says it in a line."""

    title: str
    source: Callable[[], RequestSource]


def read_workload(section: Fields, base_dir: Path, seed: int) -> Workload:
    """Read [workload]; paths are relative to `base_dir`. ConfigError names key, value and range.

    `section` was made with WORKLOAD_KEYS. What is wrong with a trace's first line is found here,
    what is wrong further down when the source comes to it.
    """
    if ("trace" in section) == ("arrivals" in section):
        both = "both trace and arrivals" if "trace" in section else "neither trace nor arrivals"
        raise ConfigError(f"{section.where} has {both}: give one of them")
    if "trace" in section:
        _refuse_others(section, TRACE_KEYS, "a trace")
        workload = _read_trace(section, base_dir, seed)
    else:
        kind = section.one_of("arrivals", "", ARRIVALS)
        _refuse_others(section, (*_COMMON_KEYS, *_KEYS_OF[kind]), f"arrivals {kind}")
        workload = _read_synthetic(section, kind, base_dir, seed)
    retries = _read_retries(section, seed)
    if retries is None:
        return workload
    return Workload(workload.title, lambda: RetryingRequests(workload.source(), retries))


def _read_trace(section: Fields, base_dir: Path, seed: int) -> Workload:
    path = base_dir / section.text("trace", "", may_be_empty=False)
    format = section.one_of("format", "", FORMATS) if "format" in section else None
    trace = open_trace(path, format)
    selection = Selection(
        start_ns=_time(section, "start") or 0,
        duration_ns=_positive_time(section, "window"),
        sample=section.number("sample", 1.0, MIN_SAMPLE, 1.0),
        limit=section.integer("limit", None, 1, MAX_TRACE_ROWS),
        speed=section.number("speed", 1.0, MIN_SPEED, MAX_SPEED),
        seed=seed,
        zeros_are_ones=section.one_of("zeros", "drop", ("drop", "one")) == "one",
        prefixes=_switch(section, "prefixes"),
    )
    clients = _read_clients(section)
    if not trace.has_arrivals:
        raise ConfigError(
            f"{section.where} trace is {path}, which has lengths only, no arrivals: give arrivals, "
            'and take the file as { lengths = "empirical", file = … } of prompt and output'
        )
    # Opened anew for each run, which counts for itself what it left out.
    return Workload(
        trace.title, lambda: TraceRequests(open_trace(path, format), selection, clients)
    )


def _read_synthetic(section: Fields, kind: str, base_dir: Path, seed: int) -> Workload:
    limit = section.integer("num_requests", None, 1, MAX_REQUESTS)
    end = _positive_time(section, "duration")
    if limit is None and end is None:
        raise ConfigError(f"{section.where} lacks num_requests or duration: one of them, or both")
    content = Content(
        lengths=read_lengths(section, base_dir),
        prefix_tokens=section.integer_or("prefix_tokens", 0, 0, MAX_TOKENS),
        num_prefixes=section.integer_or("num_prefixes", 1, 1, MAX_PREFIXES),
        clients=_read_clients(section),
    )
    if "num_prefixes" in section and not content.prefix_tokens:
        raise ConfigError(f"{section.where} has num_prefixes without prefix_tokens")
    if kind == "closed":
        return _read_closed(section, content, limit, end, seed)
    rate = _read_rate(section, kind)
    if end is not None and limit is None:
        _check_number(section, rate, end)
    at_once = section.integer_or("burst_size", 1, 1, MAX_REQUESTS)
    if kind == "gamma":
        section.required("cv", "the coefficient of variation of the gaps between arrivals")
    cv = _read_cv(section, "cv") if kind == "gamma" else 1.0

    def source() -> RequestSource:
        if rate is None:
            times = all_at_once()
        elif kind in ("uniform", "burst"):
            times = evenly(rate, at_once)
        else:
            times = renewals(gaps(stream(seed, "arrivals").random, 1 / rate, cv))
        return OpenRequests(times, content.maker(seed), limit, end)

    how = "all at once" if rate is None else f"{rate:g} requests/s"
    return Workload(f"{kind} arrivals, {how}", source)


def _read_closed(
    section: Fields, content: Content, limit: int | None, end: int | None, seed: int
) -> Workload:
    section.required("users", "so many send one request at a time")
    users = section.integer_or("users", 1, 1, MAX_USERS)
    think = section.number("think_time", 0.0, 0.0, MAX_SECONDS)
    cv = _read_cv(section, "think_cv")

    def source() -> RequestSource:
        draw = gaps(stream(seed, "thinking").random, think, cv)
        # A run of requests that are refused at once, and of no thinking, must end somewhere.
        most = MAX_REQUESTS if limit is None else limit
        return ClosedRequests(users, draw, content.maker(seed), most, end)

    return Workload(f"{users:,} users, who think for {think:g} s", source)


def _read_rate(section: Fields, kind: str) -> float | None:
    """Read requests a second; None: all at once, which only bursts can be."""
    if kind == "burst" and "rate" not in section:
        if "burst_size" in section:
            raise ConfigError(f"{section.where} has burst_size without rate: how often they come")
        if "num_requests" not in section:
            raise ConfigError(f"{section.where} lacks num_requests: how many come at once")
        return None
    section.required("rate", "requests a second")
    if kind == "burst":
        section.required("burst_size", "how many come at once")
    return section.number("rate", 1.0, MIN_RATE, MAX_RATE)


def _read_cv(section: Fields, key: str) -> float:
    """Read a coefficient of variation, standard deviation over mean."""
    if key in section and section.get(key) == 0:
        return 0.0
    return section.number(key, 0.0, MIN_CV, MAX_CV)


def _check_number(section: Fields, rate: float | None, end: int) -> None:
    assert rate is not None
    if rate * end / NS_PER_S > MAX_REQUESTS:
        raise ConfigError(
            f"{section.where} rate × duration is about {rate * end / NS_PER_S:,.0f} requests, at "
            f"most {MAX_REQUESTS:,} are made: lower one of them, or give num_requests"
        )


def _read_clients(section: Fields) -> Clients:
    if not any(key in section for key in CLIENT_KEYS):
        return AS_THEY_ARE
    if "impatient" in section:
        section.required("patience", "how many seconds impatient clients wait")
    return Clients(
        max_tokens=section.integer("max_tokens", None, 1, MAX_TOKENS),
        patience_ns=_time(section, "patience"),
        impatient=section.number("impatient", 1.0, 0.0, 1.0),
        deadline_ns=_time(section, "deadline"),
    )


def _read_retries(section: Fields, seed: int) -> Retries | None:
    limit = section.integer_or("retries", 0, 0, MAX_RETRIES)
    backoff = section.number("backoff", 1.0, MIN_BACKOFF, MAX_BACKOFF)
    if not limit:
        if "backoff" in section:
            section.required("retries", "how often clients try again")
        return None
    return Retries(limit, round(backoff * NS_PER_S), seed)


def _refuse_others(section: Fields, allowed: tuple[str, ...], what: str) -> None:
    for key in WORKLOAD_KEYS:
        if key in section and key not in allowed:
            raise ConfigError(
                f"{section.where} has {key}, which {what} does not have: its keys are "
                f"{', '.join(allowed)}"
            )


def _time(section: Fields, key: str) -> int | None:
    """Read seconds, in nanoseconds."""
    if key not in section:
        return None
    return round(section.number(key, 0.0, 0.0, MAX_SECONDS) * NS_PER_S)


def _positive_time(section: Fields, key: str) -> int | None:
    """Read seconds above 0, in nanoseconds; less than one is one."""
    if key not in section:
        return None
    seconds = section.number(key, 0.0, 0.0, MAX_SECONDS, above_low=True)
    return max(1, round(seconds * NS_PER_S))


def _switch(section: Fields, key: str) -> bool:
    if key not in section:
        return True
    value = section.get(key)
    if not isinstance(value, bool):
        raise section.wrong(key, "true or false")
    return value
