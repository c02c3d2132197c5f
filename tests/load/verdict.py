"""Holds what was seen of a storm against what is promised."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from load.storm import MAX_REQUESTS_PER_S, Course
from load.watched import MIB

MEMORY_SHARE = 0.05
SHORT_MEMORY_SHARE = 0.25
"""Of a storm of seconds: memory is touched for the first time up to its end, and one long prompt
shows in the mean of a few looks, so the least of them counts."""
STEP_SHARE = 0.05
THROUGHPUT_SHARE = 0.25
BROKEN = re.compile(r"Traceback|Exception|\bCRITICAL\b|was never retrieved")


@dataclass(frozen=True)
class Check:
    """One promise. `is_kept` None: it was looked at, and is no promise of this run."""

    name: str
    is_kept: bool | None
    seen: str

    def line(self) -> str:
        word = {True: "kept", False: "BROKEN", None: "seen"}[self.is_kept]
        return f"{word:7}{self.name}: {self.seen}"


def judge(course: Course, log: str, *, with_times: bool) -> list[Check]:
    """Give all checks; `with_times`: it was long enough for step time and throughput, too."""
    checks = [
        _answers(course),
        _leavers(course),
        _memory(course, *((mean, MEMORY_SHARE) if with_times else (min, SHORT_MEMORY_SHARE))),
        _blocks(course),
        _log(log),
        _steps(course),
        *_throughput(course),
    ]
    if with_times:
        return checks
    timed = ("step time", "throughput")
    return [
        Check(one.name, None, one.seen) if one.name.startswith(timed) else one for one in checks
    ]


def _answers(course: Course) -> Check:
    tally = course.tally
    seen = f"{tally.num_asked:,} asked, {tally.num_ended:,} ended; {tally.faults or 'no fault'}"
    is_kept = tally.num_asked == tally.num_ended and not tally.outcomes["fault"]
    return Check("every request has exactly one end", is_kept, seen)


def _leavers(course: Course) -> Check:
    """A storm in which nobody was refused or left would promise nothing."""
    outcomes = course.tally.outcomes
    left = sum(count for name, count in outcomes.items() if name.startswith("left"))
    refused = sum(count for name, count in outcomes.items() if name.startswith("429"))
    wrong = sum(count for name, count in outcomes.items() if name.startswith("4")) - refused
    total = max(1, course.tally.num_asked)
    seen = ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items()))
    seen += f"; {course.tally.num_without_client:,} arrivals found no client free"
    return Check("it was a storm", left > total / 8 and refused > 0 and wrong > 0, seen)


def _memory(course: Course, level: Callable[[Sequence[int]], float], most: float) -> Check:
    """Thirds, because what requests need for themselves comes and goes."""
    third = max(1, len(course.memory) // 3)
    begun, ended = level(course.memory[:third]), level(course.memory[-third:])
    change = ended / begun - 1
    seen = f"{begun / MIB:,.1f} MiB in the first third, {ended / MIB:,.1f} in the last"
    seen += f" ({change:+.1%}), at most {max(course.memory) / MIB:,.1f}"
    return Check("memory is flat", change <= most, seen)


def _blocks(course: Course) -> Check:
    idle = course.idle
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    seen = ", ".join(f"{name} {idle[name]:g}" for name in names)
    return Check("blocks are back", all(idle[name] == 0 for name in names), seen)


def _log(log: str) -> Check:
    lines = [line for line in log.splitlines() if BROKEN.search(line)]
    return Check("nothing unexpected in the log", not lines, lines[0] if lines else "nothing")


def _steps(course: Course) -> Check:
    assert course.before is not None and course.storm is not None and course.after is not None
    calm = mean([course.before.step_ms("decode"), course.after.step_ms("decode")])
    stormy = course.storm.step_ms("decode")
    change = _change(stormy, calm)
    sizes = f"{course.before.step_tokens('decode'):.1f}, {course.storm.step_tokens('decode'):.1f}"
    seen = (
        f"decode {course.before.step_ms('decode'):.3f} and {course.after.step_ms('decode'):.3f} ms "
        f"calm, {stormy:.3f} ms in the storm ({_told(change)}); rows {sizes}"
    )
    is_kept = change is not None and abs(change) <= STEP_SHARE
    return Check("step time is as before", is_kept, seen)


def _throughput(course: Course) -> list[Check]:
    assert course.before is not None and course.storm is not None and course.after is not None
    checks = []
    for name in ("generation_tokens_total", "computed_tokens_total"):
        calm = mean([course.before.rate(name), course.after.rate(name)])
        stormy = course.storm.rate(name)
        change = _change(stormy, calm)
        seen = f"{calm:,.1f} a second calm, {stormy:,.1f} in the storm ({_told(change)})"
        is_kept = change is not None and abs(change) <= THROUGHPUT_SHARE
        checks.append(Check(f"throughput of accepted work, {name}", is_kept, seen))
    facts = course.storm.facts()
    seen = (
        f"{course.offered_per_s:.1f} requests a second offered (at most {MAX_REQUESTS_PER_S:g}); "
        f"client {facts['client_cores']:.2f} cores, server {facts['server_cores']:.2f}"
    )
    return [*checks, Check("load and CPU", None, seen)]


def _change(stormy: float, calm: float) -> float | None:
    """Give by which share a storm changed something; None: while it was calm there was none."""
    return stormy / calm - 1 if calm else None


def _told(change: float | None) -> str:
    return "nothing to compare with" if change is None else f"{change:+.1%}"
