"""Makes a profile of event logs: fits, holds out, and says how sure it is.

Belongs here: the order of things, what is refused, what is told. Not here: reading (steps),
arithmetic (fit, holdout), printing (cli). Called by the command line.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everbatch.base.errors import EventLogError
from everbatch.calibration.fit import TILE, WIDE, Fit, fit_prices
from everbatch.calibration.holdout import StepErrors, split, step_errors
from everbatch.calibration.steps import MeasuredLog
from everbatch.costs.fitted import Region
from everbatch.costs.profile import Profile

MIN_LINES = 20
"""Of each of the two kinds of steps: a fifth is held out, and there are seven prices."""
UNSURE = 0.25
"""A standard error of this fraction of its price, or more, is worth a word."""
WITHOUT_PROMPT = "decodes alone"
WITH_PROMPT = "with a prompt"
ALL = "all"
UNITS = {
    "decode_step": "a step of decodes",
    "prompt_step": "a step with a prompt",
    "decode": "a request that decodes",
    "decode_context": "a token of its context",
    "prompt_token": "a token of a prompt",
    "prompt_pair": "a pair of query and key",
    "swapped_block": "a block to the host or back",
    WIDE: "a token of a step beyond the first {narrow_tokens}",
    TILE: "{tile_tokens} tokens of a step, begun ones too",
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile and what it is worth."""

    profile: Profile
    fit: Fit
    errors: dict[str, StepErrors]
    """Of the steps held out, by their kind: decodes alone, with a prompt, all."""
    num_fitted_steps: int
    left_out: dict[str, int]
    """Steps by the reason why they were not used."""
    notes: list[str]

    def price_rows(self) -> list[tuple[str, str, float, float | None, int]]:
        """Give (name, what it is paid for, price in ns, its standard error, how many were seen)."""
        return [
            (
                name,
                _unit(name, self.fit),
                getattr(self.fit.prices, name),
                self.fit.standard_errors.get(name),
                num_seen,
            )
            for name, num_seen in self.fit.num_seen.items()
        ]

    def facts(self) -> dict[str, Any]:
        """Give everything for programs."""
        return {
            "prices_ns": {
                name: {"price": price, "standard_error": error, "num_seen": seen}
                for name, _, price, error, seen in self.price_rows()
            },
            "narrow_tokens": self.fit.prices.narrow_tokens,
            "tile_tokens": self.fit.prices.tile_tokens,
            "spread": self.fit.spread,
            "num_fitted_steps": self.num_fitted_steps,
            "num_outliers": self.fit.num_outliers,
            "outlier_time": self.fit.outlier_time,
            "held_out": {kind: asdict(errors) for kind, errors in self.errors.items()},
            "region": {name: list(seen) for name, seen in self.profile.region.ranges.items()},
            "left_out": self.left_out,
            "notes": self.notes,
        }


def calibrate(logs: Sequence[MeasuredLog], version: str) -> Calibration:
    """Fit a profile to logs of one engine; EventLogError says what they lack.

    `version` is that of everbatch, for the profile to tell.
    The prices are those that were tested: what was held out has no part in them, nor in the region.
    """
    _check_alike(logs)
    lines = [line for log in logs for line in log.steps]
    left_out: Counter[str] = sum((log.left_out for log in logs), Counter())
    _check_enough(logs, left_out)
    fitted, held_out = split(lines)
    fit = fit_prices(fitted)
    kinds = {
        WITHOUT_PROMPT: [line for line in held_out if not line.has_prompt],
        WITH_PROMPT: [line for line in held_out if line.has_prompt],
        ALL: held_out,
    }
    errors = {kind: step_errors(fit.prices, alike) for kind, alike in kinds.items()}
    region = Region.of(work for line in fitted for work in (line.first, line.last))
    whole = errors[ALL]
    profile = Profile(
        fit.prices,
        region,
        {
            "step_total": _short(whole.total),
            "step_mean": _short(whole.mean),
            "step_p50": _short(whole.p50),
            "step_p90": _short(whole.p90),
            "step_p99": _short(whole.p99),
        },
        ", ".join(log.name for log in logs),
        {
            "everbatch": version,
            "logs": [{"file": log.name, "date": log.date, "config": log.config} for log in logs],
            "model": logs[0].model,
        },
    )
    num_fitted = sum(line.count for line in fitted)
    return Calibration(profile, fit, errors, num_fitted, dict(left_out), _notes(logs, fit))


def _check_alike(logs: Sequence[MeasuredLog]) -> None:
    """Refuse logs of different models or clocks: one profile cannot hold for both."""
    first = logs[0]
    for log in logs[1:]:
        if log.model != first.model or log.clock != first.clock:
            what = "model" if log.model != first.model else "clock"
            raise EventLogError(
                f"{log.name} is the log of another {what} than {first.name}: make a profile of each"
            )


def _check_enough(logs: Sequence[MeasuredLog], left_out: Counter[str]) -> None:
    lines = [line for log in logs for line in log.steps]
    with_prompt = sum(line.has_prompt for line in lines)
    without = len(lines) - with_prompt
    if min(with_prompt, without) >= MIN_LINES:
        return
    unusable = "".join(f"; {count:,} steps are left out: {why}" for why, count in left_out.items())
    raise EventLogError(
        f"{', '.join(log.name for log in logs)}: {with_prompt:,} lines of steps with a prompt and "
        f"{without:,} of decodes alone can be used, a fit needs {MIN_LINES} of each{unusable}: "
        "record a longer run, in which requests come one after the other"
    )


def _notes(logs: Sequence[MeasuredLog], fit: Fit) -> list[str]:
    """Say in sentences what limits the profile."""
    notes = [
        f"{log.name}: line {log.torn_line:,} is torn, as a process that is killed leaves it: "
        "not read"
        for log in logs
        if log.torn_line is not None
    ]
    if logs[0].clock is not None:
        notes.append(
            f"simulated, clock {logs[0].clock}: the profile describes that model of step time, not "
            "a machine"
        )
    for name, num_seen in fit.num_seen.items():
        unit, price = _unit(name, fit), getattr(fit.prices, name)
        error = fit.standard_errors.get(name)
        if not num_seen:
            continue
        if price == 0:
            notes.append(f"{name} is 0: {unit} costs nothing that can be told from the rest")
        elif error is not None and error >= UNSURE * price:
            notes.append(
                f"{name} is unsure by {error / price:.0%}: the log has little of it, or it moves "
                "together with something else"
            )
    return notes


def _unit(name: str, fit: Fit) -> str:
    """Say what a price is paid for."""
    return UNITS[name].format(**asdict(fit.prices))


def _short(error: float) -> float:
    return round(error, 6)
