"""Writes how the simulator predicts our own engine into docs/fidelity.md, from the record.

    python benchmarks/own_engine_page.py

Reads what `python -m fidelity.own_engine --json benchmarks/results/own-engine.json` wrote. The part
of the page stands between `<!-- own engine -->` and `<!-- end -->`; people write the rest.
Belongs here: sentences and tables of figures. Not here: measuring.
"""

import json
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from fidelity.own_comparison import written
from harness import RESULTS_DIR, ROOT
from lesson_page import COLUMNS, filled
from provenance import where

PAGE = ROOT / "docs" / "fidelity.md"
RECORD = RESULTS_DIR / "own-engine.json"
PART = "own engine"
NOT_YET = "**Not measured yet**: that needs a machine on which nothing else runs."
LEAST_TOLD = 0.01
"""An error of the scheduler below it explains none in the table."""
Facts = Mapping[str, Any]


def main() -> int:
    """Write the page anew."""
    PAGE.write_text(filled(PAGE.read_text("utf-8"), {PART: part(recorded())}), "utf-8")
    return 0


def recorded() -> Facts | None:
    """Give the record; None: there is none yet."""
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else None


def part(told: Facts | None) -> str:
    """Give the part of the page that the record makes."""
    if told is None:
        return NOT_YET
    return "\n\n".join([_verdict(told), _table(told), _fit(told), _own_step_times(told)])


def _verdict(told: Facts) -> str:
    judged = [one for one in told["compared"] if one["is_kept"] is not None]
    missed = [one for one in judged if not one["is_kept"]]
    names = ", ".join(f"{written(one['figure'])} at {one['load']:.0%}" for one in missed)
    kept = [run for run in told["runs"] if run["is_kept"] and run["load"] is not None]
    calm = sum(run["slowdown"] <= told["max_slowdown"] for run in kept)
    again = len(told["runs"]) - sum(run["is_kept"] for run in told["runs"])
    return _wrapped(
        f"{len(judged) - len(missed)} of {len(judged)} promises are kept"
        f"{f'; missed: {names}' if missed else ''}. Arrivals of {told['seconds']:g} s a run, "
        f"{len(kept) // len(_loads(told))} runs a load; 100 % are "
        f"{told['capacity_requests_per_s']:.2f} requests/s. {again} runs were made again because "
        f"the machine was slower; of those that count for the table {calm} of {len(kept)} were "
        f"undisturbed. {where(dict(told))}"
    )


def _table(told: Facts) -> str:
    loads = _loads(told)
    lines = [
        "| | promised | " + " | ".join(f"at {load:.0%}" for load in loads) + " |",
        "|---|--:|" + "--:|" * len(loads),
    ]
    for figure in dict.fromkeys(one["figure"] for one in told["compared"]):
        alike = [one for one in told["compared"] if one["figure"] == figure]
        promised = next((one["promised"] for one in alike if one["promised"] is not None), None)
        limit = "–" if promised is None else f"{promised:.0%}"
        cells = " | ".join(map(_cell, alike))
        lines.append(f"| {written(figure)} | {limit} | {cells} |")
    explained = _wrapped(
        "In brackets: how much the engine differs from itself, and what it is worth if all steps "
        "take 1 % longer. **Bold**: the promise is missed. Preemptions are judged where each run "
        "has twenty or more."
    )
    return "\n".join(lines) + f"\n\n{explained}"


def _cell(one: Facts) -> str:
    if one["error"] is None:
        return "none" if not one["predicted"] else f"{one['predicted']:g} for none"
    error = f"{one['error']:+.1%}"
    if one["is_kept"] is False:
        error = f"**{error}**"
    return f"{error} ({one['differs']:.1%}; {one['if_slower'] or 0.0:+.1%})"


def _fit(told: Facts) -> str:
    fit = told["calibration"]
    errors = fit["held_out"]["all"]
    shape = []
    if fit["narrow_tokens"]:
        shape.append(f"a bend at {fit['narrow_tokens']} tokens")
    if fit["tile_tokens"]:
        shape.append(f"tiles of {fit['tile_tokens']}")
    return _wrapped(
        f"The fit saw {fit['num_fitted_steps']:,} steps of the other workload and found "
        f"{' and '.join(shape) or 'neither bend nor tiles'}; on {errors['num_steps']:,} steps that "
        f"it did not see, the total time is {errors['total']:+.1%} off and a step "
        f"{errors['mean']:.1%} in the mean."
    )


def _own_step_times(told: Facts) -> str:
    largest = max(
        (
            error
            for of in told["own_step_times"].values()
            for errors in of.values()
            for error in errors
        ),
        key=abs,
    )
    found = (
        "With the step times of the engine's own log the means of TTFT, ITL and E2E are "
        f"{abs(largest):.1%} off at most"
    )
    if abs(largest) < LEAST_TOLD:
        found += ": what is left in the table is the step time, not the scheduler"
    return _wrapped(f"{found}.")


def _loads(told: Facts) -> list[float]:
    return list(dict.fromkeys(one["load"] for one in told["compared"]))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
