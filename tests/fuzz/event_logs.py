"""Event logs, as all that read them do: explaining, overview, replay, calibration."""

from contextlib import suppress
from functools import cache
from io import StringIO

from command_line import everbatch
from fuzz.target import Target, scratch_folder

from everbatch.base.errors import ConfigError, EventLogError
from everbatch.base.eventlog import read_events
from everbatch.calibration.steps import read_log as read_steps
from everbatch.diagnose.explain import UnknownRequest, explain
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.overview import overview
from everbatch.diagnose.sentences import Teller
from everbatch.sim.recorded import read_log

SCENARIOS = ("lesson-static", "memory-pressure", "samples", "rate-limited", "overload-deadline")
MAX_SEED_BYTES = 40_000


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    path = _folder() / "events.jsonl"
    path.write_bytes(data)
    for reader in (_explained, _overview, _measured, lambda _: read_log(path)):
        # What one of them does not take, a log without times or without the request, others may.
        with suppress(*TARGET.declared):
            reader(text)
    _events(text)


def _events(text: str) -> None:
    for _ in read_events(StringIO(text)):
        pass


def _explained(text: str) -> None:
    for request in ("1", "a"):
        told = explain(StringIO(text), request)
        told.facts()
        teller = Teller(told.config, Ruler(told.is_steps))
        for life in told.lives:
            teller.heading(life)
            list(teller.rows(life))


def _overview(text: str) -> None:
    found = overview(StringIO(text))
    assert found.log is not None


def _measured(text: str) -> None:
    read_steps(StringIO(text), "events.jsonl")


def _seeds() -> list[bytes]:
    seeds = []
    for name in SCENARIOS:
        path = _folder() / f"{name}.jsonl"
        answer = everbatch("simulate", name, "--events", path)
        assert answer.status == 0, answer.err
        whole = path.read_bytes()
        seeds.append(whole[: whole.rfind(b"\n", 0, MAX_SEED_BYTES) + 1])
    return seeds


TARGET = Target(
    "event_log",
    _read,
    (EventLogError, ConfigError, UnknownRequest),
    _seeds,
    (
        *(b'"event":"step"', b'"event":"steps"', b'"event":"preempted"', b'"event":"finished"'),
        *(b'"event":"header"', b'"version":1', b'"dropped":3', b'"clock":"steps"', b'"slot":null'),
        *(b'"reason":"kv_budget"', b'"samples":2', b'"behind":"1"', b'"id":"1/0"', b'"step":0'),
        *(b'"event":"step_failed"', b'"event":"sample_finished"', b'"way":"swap"', b'"blocks":[]'),
    ),
)
