"""Runs the command line inside the test's process, and reads what `simulate` writes.

As users call it: arguments in, exit status, output and files out.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from everbatch.cli.main import main

IN_SECONDS = {
    "clock": {"kind": "nominal"},
    "hardware": {"flops": 1e12, "memory_bandwidth": 1e12},
    "model": {"num_params": 1e9, "bytes_per_value": 2},
}
"""Sections of a scenario on a clock of seconds: 2 ms a pass, or 2 ms a token if that is more."""


@dataclass(slots=True)
class Answer:
    """What a command gave."""

    status: int
    out: str
    err: str


@dataclass(slots=True)
class Run:
    """One simulated run: its summary, its lines by step, its events."""

    summary: dict[str, Any]
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def request(self, id: str) -> dict[str, Any]:
        return self.summary["requests"][id]

    def deferrals(self, id: str) -> list[tuple[str, int, int]]:
        """Why a request waited, as (reason, needed, available), in order."""
        return [
            (event["reason"], event["needed"], event["available"])
            for event in self.events
            if event["event"] == "deferred" and event["id"] == id
        ]

    def steps_of(self, id: str) -> list[int]:
        """The steps in which a request got a token."""
        return [step for step, line in self.lines.items() if id in line["scheduled"]]

    def starts(self) -> list[str]:
        """All that started, in the order in which they did."""
        return [id for line in self.lines.values() for id in line["admitted"]]

    def finish_order(self) -> list[str]:
        return [id for line in self.lines.values() for id in line["finished"]]

    def chunks(self, id: str) -> list[int]:
        """How many tokens of a request each step took, while it was in prefill."""
        return [line["scheduled"][id] for line in self.lines.values() if id in line["prefill"]]


def everbatch(*arguments: object) -> Answer:
    """Call `everbatch` with these arguments."""
    out, err = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["everbatch", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code
    return Answer(status or 0, out.getvalue(), err.getvalue())


def simulate(scenario: object, *arguments: object) -> Run:
    """Run `everbatch simulate SCENARIO` and read all that it can write."""
    with TemporaryDirectory() as folder:
        steps, events = Path(folder, "steps.jsonl"), Path(folder, "events.jsonl")
        answer = everbatch(
            "simulate", scenario, "--json", "--steps", steps, "--events", events, *arguments
        )
        assert answer.status == 0, answer.err
        lines = {line["step"]: line for line in read_lines(steps)}
        return Run(json.loads(answer.out), lines, read_lines(events))


def run_scenario(
    *requests: dict[str, Any],
    run: dict[str, Any] | None = None,
    tenants: dict[str, Any] | None = None,
    **engine: Any,
) -> Run:
    """Run a scenario made on the spot; sizes not given are those of `scenario_text`."""
    text = scenario_text(requests, run, **engine)
    if tenants is not None:
        text = json.dumps({**json.loads(text), "tenants": tenants})
    with TemporaryDirectory() as folder:
        path = Path(folder, "scenario.json")
        path.write_text(text, encoding="utf-8")
        return simulate(path)


def request(
    id: str, prompt_tokens: int = 4, output_tokens: int = 3, **fields: Any
) -> dict[str, Any]:
    """One of a scenario's requests; `prompt=` in place of private tokens."""
    prompt = {} if "prompt" in fields else {"prompt_tokens": prompt_tokens}
    return {"id": id, **prompt, "output_tokens": output_tokens, **fields}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scenario_text(
    requests: Sequence[dict[str, Any]] = ({"id": "a", "prompt_tokens": 4, "output_tokens": 3},),
    run: dict[str, Any] | None = None,
    **engine: Any,
) -> str:
    """A scenario as JSON: 4 slots, 512 tokens, 64 blocks of 4."""
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 512, "num_blocks": 64, "block_size": 4}
    return json.dumps({"engine": {**sizes, **engine}, "run": run or {}, "requests": list(requests)})
