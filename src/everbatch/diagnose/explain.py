"""Explains one request of a log: the entry of this layer. Called by cli.

`explain` gives values, `sentences.tell` makes text of them.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from everbatch.base.errors import EverbatchError
from everbatch.base.events import Arrived, Rejected, SampleFinished
from everbatch.diagnose.life import Life, sums
from everbatch.diagnose.log import LogReader, check_sizes
from everbatch.diagnose.recorder import Recorder
from everbatch.diagnose.world import World

MAX_MATCHES = 5
MAX_PROMPTS = 64
"""Prompts of one completion that are told together; a longer list is for programs."""
NUM_TAIL_DIGITS = 12
"""Of the tail that makes an answer's id unique where its client gave one."""
MAX_IDS_COMPARED = 20_000
"""Comparing an unknown id with more of them would take longer than reading the log."""


class UnknownRequest(EverbatchError):
    """A log does not name the request; the message names those whose ids come close."""


@dataclass(slots=True, frozen=True)
class Explanation:
    """The lives of a request's samples, most often one, and what the log says of itself."""

    request: str
    config: dict[str, Any]
    is_steps: bool
    lives: list[Life]
    num_events: int
    num_dropped: int
    damage: str | None
    torn_line: int | None

    def facts(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return {
            "request": self.request,
            "clock": "steps" if self.is_steps else "ns",
            "log": {
                "num_events": self.num_events,
                "num_dropped": self.num_dropped,
                "damage": self.damage,
                "torn_line": self.torn_line,
            },
            "lives": [asdict(life) | {"sums": asdict(sums(life))} for life in self.lives],
        }


def explain(lines: Iterable[str], request: str) -> Explanation:
    """Read a log and tell the life of a request, or of each of its samples.

    The id of a completion of several prompts, requests ID-0, ID-1 and so on, tells all of them, and
    so does what clients sent as X-Request-Id.

    Raises EventLogError if the log cannot be read at all, UnknownRequest if it does not name it.
    """
    log = LogReader(lines)
    check_sizes(log.config)
    world = World(log.config, log.ruler)
    recorder = Recorder(request, world, begins_midway=log.num_dropped > 0)
    prompts: dict[str, Recorder] = {}
    ids: dict[str, None] = {}
    for event in log.events():
        world.take(event)
        recorder.take(event)
        if isinstance(event, Arrived | Rejected | SampleFinished):
            ids[event.id] = None
            if _belongs_to(request, event.id) and len(prompts) < MAX_PROMPTS:
                prompts.setdefault(event.id, Recorder(event.id, world))
        for of_prompt in prompts.values():
            of_prompt.take(event)
    lives = recorder.close() or [life for one in prompts.values() for life in one.close()]
    if not lives:
        raise UnknownRequest(_unknown(request, list(ids), log))
    return Explanation(
        request,
        log.config,
        log.ruler.is_steps,
        lives,
        log.num_events,
        log.num_dropped,
        log.damage,
        log.torn_line,
    )


def close_ids(request: str, ids: list[str]) -> list[str]:
    """Give the ids that somebody may have meant, the likeliest first."""
    longer = [id for id in ids if request and id.startswith(request)]
    if longer:
        return longer[:MAX_MATCHES]
    if len(ids) <= MAX_IDS_COMPARED:
        found = get_close_matches(request, ids, MAX_MATCHES)
        if found:
            return found
    return [id for id in ids if request and (request in id or id in request)][:MAX_MATCHES]


def _belongs_to(asked: str, id: str) -> bool:
    """Whether a request is a prompt of a completion, or of what a client called so."""
    stem, _, number = id.rpartition("-")
    if stem == asked and number.isdecimal():
        return True
    # A server makes KIND-GIVEN-TAIL of the id that a client gave.
    if asked not in id:
        return False
    tail = rf"-[0-9a-f]{{{NUM_TAIL_DIGITS}}}(-\d+)?"
    return re.fullmatch(rf"[a-z]+-{re.escape(asked)}{tail}", id) is not None


def _unknown(request: str, ids: list[str], log: LogReader) -> str:
    found = close_ids(request, ids)
    if log.damage is not None:
        hint = f"; the log is broken ({log.damage}), what comes after is not read"
    elif log.num_dropped:
        hint = f"; the log has lost its first {log.num_dropped:,} events"
    else:
        hint = ""
    if found:
        told = ", ".join(found)
        return f"the log names no request {request!r}{hint}: did you mean {told}?"
    if not ids:
        return f"the log names no request {request!r}{hint}: it names none at all"
    return f"the log names no request {request!r}{hint}: it has {len(ids):,}, such as {ids[0]}"
