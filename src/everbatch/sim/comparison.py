"""Two runs side by side: whether they may be compared, what differs, who pays.

Works on summaries, fresh or saved; pure. Called by `everbatch compare`.
"""

from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.base.units import counted
from everbatch.sim.summary import Summary

FIGURES = (
    "steps",
    "slot_iterations",
    "useful_tokens",
    "slot_occupancy",
    "masked_slot_iterations",
    "scheduled_tokens",
    "recomputed_tokens",
    "recomputed_token_ratio",
    "num_preemptions",
    "peak_blocks",
    "prefix_cache_hit_tokens",
    "num_rejected",
)
RATES = ("throughput", "goodput")
LATENCIES = ("ttft", "itl", "tpot", "e2e")
STEP_TIME = "step of {:,} to {:,} tokens"
STEP_TIME_OF_ONE = "step of 1 token"
_TIMES = ("first_token_step", "finished_step")
_TIMES_S = ("first_token_s", "finished_s")
TABLES = ("config", "workload", "idle_slot_iterations", *LATENCIES)
OPTIONAL_TABLES = ("conditions", "num_finished", "requests", *RATES)
NEEDED = ("clock", "horizon", *TABLES, *FIGURES)
_NEEDED_WITHIN = (
    ("config", "max_num_seqs", int),
    ("workload", "num_requests", int),
    ("workload", "digest", str),
)
_NEEDED_OF_REQUESTS = ("state", "finish_reason", "rejected")
_COUNTS_OF_REQUESTS = ("output_tokens", "num_preemptions")


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact, as it is in A and in B."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Fate:
    """A request that fares otherwise in B. Times are steps or seconds; None: not within the run.

    `delay` is how much later it ends in B, or None where it ends in one run only, or in neither.
    """

    id: str
    first_token: tuple[float | None, float | None]
    finished: tuple[float | None, float | None]
    output_tokens: tuple[int, int]
    note: str
    delay: float | None
    pays: bool

    def reversed(self) -> "Fate":
        """Give how the request fares in A, if it comes from B."""
        return replace(
            self,
            first_token=self.first_token[::-1],
            finished=self.finished[::-1],
            output_tokens=self.output_tokens[::-1],
            delay=None if self.delay is None else -self.delay,
            pays=not self.pays,
        )


@dataclass(slots=True)
class Comparison:
    """What tells two runs apart."""

    obstacles: list[Difference] = field(default_factory=list)
    """Why the figures cannot be held against each other."""
    config: list[Difference] = field(default_factory=list)
    figures: list[Difference] = field(default_factory=list)
    num_same_figures: int = 0
    paying: list[Fate] = field(default_factory=list)
    """Requests that fare worse in B, the worst first."""
    gaining: list[Fate] = field(default_factory=list)
    """Requests that fare better in B, those who gain most first."""
    num_gaining: int = 0
    num_unchanged: int = 0
    has_requests: bool = True
    """Whether both runs tell of each request, in the same unit of time."""
    in_seconds: bool = False
    """Whether times are seconds in both runs."""


def compare(a: Summary, b: Summary) -> Comparison:
    """Compare two summaries; what may not be compared is told in `obstacles`."""
    result = Comparison(
        obstacles=_obstacles(a, b),
        config=_config(a, b),
        in_seconds=not (_is_in_steps(a) or _is_in_steps(b)),
    )
    for difference in _figures(a, b):
        if _is_same(difference.a, difference.b):
            result.num_same_figures += 1
        else:
            result.figures.append(difference)
    of_a, of_b = a.get("requests"), b.get("requests")
    if of_a is None or of_b is None or _is_in_steps(a) != _is_in_steps(b):
        result.has_requests = False
        return result
    for request_id, in_a in of_a.items():
        in_b = of_b.get(request_id)
        # What samples fare, their request tells.
        if in_b is not None and "sample_of" not in in_a:
            _sort_fate(result, _fate(request_id, in_a, in_b))
    # The sort is stable: equals stay in the order of the file.
    result.paying.sort(key=_severity, reverse=True)
    result.gaining.sort(key=lambda fate: _severity(fate.reversed()), reverse=True)
    result.num_gaining = len(result.gaining)
    return result


def check_summary(data: object, source: str) -> Summary:
    """Give a saved summary, or say what it lacks."""
    lacking = _lacking(data) if isinstance(data, dict) else NEEDED
    if not isinstance(data, dict) or lacking:
        raise ConfigError(
            f"{source} is no summary of `everbatch simulate --json`: it lacks {', '.join(lacking)}"
        )
    return data


def _lacking(data: Summary) -> list[str]:
    """Name the parts that are missing, or no tables where a summary has such."""
    lacking = [name for name in NEEDED if name not in data]
    tables = [name for name in TABLES if name in data]
    tables += [name for name in OPTIONAL_TABLES if data.get(name) is not None]
    lacking += [f"the table {name}" for name in tables if not isinstance(data[name], dict)]
    if not _are_step_times(data.get("step_times") or []):
        lacking.append("step_times as rows of tokens, steps and mean")
    if lacking:
        return lacking
    lacking = [
        f"{table} {key}"
        for table, key, kind in _NEEDED_WITHIN
        if not isinstance(data[table].get(key), kind)
    ]
    times = _TIMES if _is_in_steps(data) else _TIMES_S
    for request_id, facts in (data.get("requests") or {}).items():
        if not _is_fate(facts, times):
            return [*lacking, f"what became of request {shown(request_id)}"]
    return lacking


def _is_fate(facts: object, times: tuple[str, str]) -> bool:
    """Whether it tells of a request what `_fate` compares."""
    return (
        isinstance(facts, dict)
        and all(name in facts for name in (*times, *_NEEDED_OF_REQUESTS))
        and all(isinstance(facts[name], int | float | None) for name in times)
        and all(isinstance(facts.get(name), int) for name in _COUNTS_OF_REQUESTS)
    )


def _are_step_times(rows: object) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and isinstance(row.get("tokens"), list)
        and [type(bound) for bound in row["tokens"]] == [int, int]
        and type(row.get("mean")) in (int, float)
        for row in rows
    )


def _is_in_steps(summary: Summary) -> bool:
    return summary.get("duration_s") is None


def _obstacles(a: Summary, b: Summary) -> list[Difference]:
    facts = [
        Difference("arrivals", _arrivals(a), _arrivals(b)),
        Difference("slots", a["config"]["max_num_seqs"], b["config"]["max_num_seqs"]),
        Difference("horizon", a["horizon"], b["horizon"]),
        Difference("clock", a["clock"], b["clock"]),
    ]
    return [fact for fact in facts if fact.a != fact.b]


def _arrivals(summary: Summary) -> str:
    """Name what comes when; whether clients stay for it is a condition, which may differ."""
    workload = summary["workload"]
    digest = workload.get("arrivals_digest", workload["digest"])
    return f"{counted(workload['num_requests'], 'request')} ({digest!s:.8})"


def _config(a: Summary, b: Summary) -> list[Difference]:
    """Give the options that differ, and the conditions besides."""
    of_a, of_b = ({**summary["config"], **_conditions(summary)} for summary in (a, b))
    if not a.get("conditions") or not b.get("conditions"):
        # A summary of an older version tells none.
        of_a, of_b = a["config"], b["config"]
    names = dict.fromkeys([*of_a, *of_b])
    facts = [Difference(name, of_a.get(name), of_b.get(name)) for name in names]
    return [fact for fact in facts if fact.a != fact.b]


def _conditions(summary: Summary) -> dict[str, Any]:
    """Give a run's conditions one by one, as people name them."""
    told: dict[str, Any] = {}
    for table, values in (summary.get("conditions") or {}).items():
        if isinstance(values, dict):
            told |= {f"[{table}] {key}": value for key, value in values.items()}
        elif isinstance(values, list):
            told[table] = "; ".join(_as_words(item) for item in values) or None
        else:
            told[table.replace("_", " ")] = values
    return told


def _as_words(table: object) -> str:
    if not isinstance(table, dict):
        return str(table)
    words = (f"{key} {f'{v:g}' if isinstance(v, float) else v}" for key, v in table.items())
    return " ".join(words).removeprefix("kind ")


def _figures(a: Summary, b: Summary) -> list[Difference]:
    facts = [Difference(name, a.get(name), b.get(name)) for name in ("duration_s", *FIGURES)]
    causes = dict.fromkeys([*a["idle_slot_iterations"], *b["idle_slot_iterations"]])
    for cause in causes:
        idle_a, idle_b = a["idle_slot_iterations"], b["idle_slot_iterations"]
        facts.append(Difference(f"idle: {cause}", idle_a.get(cause, 0), idle_b.get(cause, 0)))
    ended_a, ended_b = a.get("num_finished") or {}, b.get("num_finished") or {}
    facts += [
        # Latencies are those of who ended so: without it other requests are compared unawares.
        Difference(f"num_finished {reason}", ended_a.get(reason, 0), ended_b.get(reason, 0))
        for reason in dict.fromkeys([*ended_a, *ended_b])
    ]
    for name in (*RATES, *LATENCIES):
        # A run on the clock of steps has no rates, nor one without goals a goodput.
        of_a, of_b = a.get(name) or {}, b.get(name) or {}
        facts += [
            Difference(f"{name} {key}", of_a.get(key), of_b.get(key))
            for key in dict.fromkeys([*of_a, *of_b])
        ]
    facts += _step_times(a, b)
    return facts


def _step_times(a: Summary, b: Summary) -> list[Difference]:
    """Hold steps of about as many tokens against each other."""
    of_a, of_b = (
        {
            _step_time(*row["tokens"]): row["mean"]
            for row in sorted(summary.get("step_times") or (), key=lambda row: row["tokens"])
        }
        for summary in (a, b)
    )
    return [Difference(name, of_a[name], of_b[name]) for name in of_a if name in of_b]


def _step_time(first: int, last: int) -> str:
    return STEP_TIME_OF_ONE if last == 1 else STEP_TIME.format(first, last)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two figures are the same: means of the same facts may differ by rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def _fate(request_id: str, a: dict[str, Any], b: dict[str, Any]) -> Fate | None:
    """Say how a request fares in B, or None if no different."""
    first_token, finished = _TIMES if _TIMES[0] in a else _TIMES_S
    keys = (first_token, finished, "output_tokens", "finish_reason", "rejected", "num_preemptions")
    if all(a[key] == b[key] for key in keys):
        return None
    delay = None
    if a[finished] is not None and b[finished] is not None:
        delay = b[finished] - a[finished]
    return Fate(
        id=request_id,
        first_token=(a[first_token], b[first_token]),
        finished=(a[finished], b[finished]),
        output_tokens=(a["output_tokens"], b["output_tokens"]),
        note=_note(a, b),
        delay=delay,
        pays=_rank(b, b[first_token], b[finished]) < _rank(a, a[first_token], a[finished]),
    )


def _rank(facts: dict[str, Any], first: float | None, finished: float | None) -> tuple[Any, ...]:
    """Order fates from bad to good: served at all, ended, how much, how soon, in peace."""
    done = facts["finish_reason"] in ("stop", "length")
    never = float("-inf")
    return (
        facts["rejected"] is None,
        done,
        0 if done else facts["output_tokens"],
        -finished if done and finished is not None else never,
        -first if first is not None else never,
        -facts["num_preemptions"],
    )


def _note(a: dict[str, Any], b: dict[str, Any]) -> str:
    if b["rejected"] and not a["rejected"]:
        return "refused in B"
    if a["rejected"] and not b["rejected"]:
        return "refused in A"
    if a["finish_reason"] != b["finish_reason"]:
        return f"{a['finish_reason'] or a['state']} → {b['finish_reason'] or b['state']}"
    if a["num_preemptions"] != b["num_preemptions"]:
        return f"preemptions {a['num_preemptions']} → {b['num_preemptions']}"
    return ""


def _sort_fate(result: Comparison, fate: Fate | None) -> None:
    if fate is None:
        result.num_unchanged += 1
    elif fate.pays:
        result.paying.append(fate)
    else:
        result.gaining.append(fate)


def _severity(fate: Fate) -> tuple[float, float, float]:
    """Who did not end in B comes first, by tokens lost; then the longest delays."""
    tokens_lost = fate.output_tokens[0] - fate.output_tokens[1]
    first_a, first_b = fate.first_token
    later_start = first_b - first_a if first_a is not None and first_b is not None else 0
    if fate.delay is None:
        return float("inf"), tokens_lost, later_start
    return fate.delay, tokens_lost, later_start
