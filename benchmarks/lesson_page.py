"""Writes what was measured into docs/lesson.md, so that page and record are the same.

    python benchmarks/lesson_page.py

Reads the figures that lesson_on_engine.py and jitter.py wrote into results/ with --json. In the
page each part stands between `<!-- NAME -->` and `<!-- end -->`; the rest is written by people.
Belongs here: sentences and tables of figures. Not here: measuring.
"""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import jitter
import lesson_on_engine
from harness import RESULTS_DIR, ROOT
from provenance import where

PAGE = ROOT / "docs" / "lesson.md"
LESSON, JITTER = RESULTS_DIR / "lesson.json", RESULTS_DIR / "jitter.json"
COLUMNS = 110
Facts = Mapping[str, Any]


def main() -> int:
    """Write the page anew."""
    lesson, jitter_facts = (json.loads(path.read_text("utf-8")) for path in (LESSON, JITTER))
    PAGE.write_text(filled(PAGE.read_text("utf-8"), parts(lesson, jitter_facts)), "utf-8")
    return 0


def parts(lesson: Facts, found: Facts) -> dict[str, str]:
    """Give each part of the page by its name."""
    return {
        "lesson": f"{lesson_on_engine.table(dict(lesson))}\n\n{_wrapped(_of_lesson(lesson))}",
        "jitter": f"{jitter.table(dict(found))}\n\n{_wrapped(_of_jitter(found))}",
        "waits": jitter.ttft_table(dict(found)),
        "fit": _of_fit(found),
    }


def filled(page: str, texts: Mapping[str, str]) -> str:
    """Give the page with these parts; ValueError if it has no place for one of them."""
    for name, text in texts.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no part between <!-- {name} --> and <!-- end -->")
        page = place.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def _of_lesson(told: Facts) -> str:
    ratio = told["tokens_per_s_ratio"]
    return (
        f"A step of four decodes took {told['step_ms']:.2f} ms, so requests 5 and 6 came after "
        f"{20 * told['step_ms'] / 1e3:.2f} and {50 * told['step_ms'] / 1e3:.2f} s. "
        f"{told['num_rounds']} rounds in turns: counts, tokens/s and the time to the last end are "
        "medians of the rounds, times of requests and gaps are those of all rounds. Continuous "
        f"against static, tokens/s: {ratio['median']:.2f} times as many ({ratio['min']:.2f} to "
        f"{ratio['max']:.2f} in the rounds). {where(dict(told))}"
    )


def _of_jitter(told: Facts) -> str:
    return (
        f"Milliseconds. {told['num_prompts']} prompts of {told['prompt_tokens']:,} tokens a "
        f"budget, one every {told['interval_s']:.2f} s; a gap of each of the "
        f"{told['num_decodes']} that decode counts. {where(dict(told))}"
    )


def _of_fit(told: Facts) -> str:
    errors = told["calibration"]["held_out"]
    lines = ["| steps that the fit did not see | steps | total time | mean error | p90 |"]
    lines.append("|---|--:|--:|--:|--:|")
    for kind, one in errors.items():
        lines.append(
            f"| {kind} | {one['num_steps']:,} | {one['total']:+.1%} | {one['mean']:.1%} | "
            f"{one['p90']:.1%} |"
        )
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
