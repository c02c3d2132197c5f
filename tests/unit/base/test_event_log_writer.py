"""The event log: runs of quiet steps, the digest, ids that UTF-8 cannot hold, wrong values."""

import json
import tracemalloc
from dataclasses import asdict, fields
from hashlib import sha256
from io import StringIO

import pytest

from everbatch.base.errors import EventLogError
from everbatch.base.event_lines import event_line
from everbatch.base.eventlog import DIGESTED_AT_ONCE, EventLogWriter, read_events
from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Finished,
    Preempted,
    QuietSteps,
    Rejected,
    SampleFinished,
    StepChange,
    StepFailed,
    StepRan,
    StepsRan,
)


def quiet_step(number: int) -> StepRan:
    return StepRan(number, number, number - 1, 2, 2, 2, (), (), (), (), 5, 0)


def busy_step(number: int) -> StepRan:
    return StepRan(number, number, number - 1, 2, 2, 2, (), (), ("a",), (), 5, 0)


def write(*parts: object) -> tuple[str, str]:
    """Write events; a "flush" among them flushes. Gives body and digest."""
    file = StringIO()
    writer = EventLogWriter(file, {})
    for part in parts:
        if part == "flush":
            writer.flush()
        else:
            writer.write([part])
    digest = writer.digest()
    writer.flush()
    return file.getvalue().partition("\n")[2], digest


def test_a_run_of_quiet_steps_is_one_line():
    body, digest = write(busy_step(1), quiet_step(2), quiet_step(3), busy_step(4))

    events = list(read_events(['{"event":"header","version":1}\n', *body.splitlines(True)]))
    assert events[1] == QuietSteps(t=3, step=2, start=1, count=2, decodes=2)
    assert digest == sha256(body.encode()).hexdigest()


def test_quiet_steps_told_together_are_those_told_one_by_one():
    together = QuietSteps(t=4, step=2, start=1, count=3, decodes=2)

    assert write(busy_step(1), together, quiet_step(5)) == write(
        busy_step(1), *map(quiet_step, (2, 3, 4, 5))
    )


@pytest.mark.parametrize(
    "event",
    [
        QuietSteps(4, 2, 1, 3, 2),
        busy_step(3),
        Arrived(0, 'a "b" \\', 3, 4, 0, "tenant\n", 1),
        Arrived(0, "ö", 3, 4, -1, "", 2),
        Preempted(1, 2, "a", None, 3, 4),
        Preempted(1, 2, "a", 5, 3, 4, "swap", 7, 8, "b", 9),
        Admitted(1, 2, "a", 0, 3, 4, 4, resumed=True),
        Admitted(1, 2, "a", 0, 3, 4, 4, resumed=False),
        Decoding(1, 2, "a", emitted=True),
        Decoding(1, 2, "ä", emitted=False),
        Deferred(1, 2, "a", "kv_budget", 3, 4),
        Deferred(1, 2, "a", "behind_head", 3, 4, "the first", 5, 6, 7),
        Finished(1, 2, "a", "stop", 3, 4, 5, 6),
        Finished(1, 2, "a", "error", 3, 4, 5, 6, "broken: ü"),
        SampleFinished(1, 2, "a/0", "stop", 3, 4, 5, 6),
        Rejected(1, "a", 3, 4, "queue_full", 5, 6),
        StepFailed(1, 2, "no memory"),
    ],
)
def test_the_line_of_an_event_is_that_of_its_json(event):
    facts = {"event": event.kind, **asdict(event)}

    assert event_line(event) == (
        json.dumps(facts, separators=(",", ":"), ensure_ascii=False) + "\n"
    )


@pytest.mark.parametrize("place", range(6))
def test_the_digest_does_not_depend_on_flushes(place):
    events = [busy_step(1), quiet_step(2), quiet_step(3), quiet_step(4), busy_step(5)]

    flushed = [*events[:place], "flush", *events[place:]]
    body, digest = write(*flushed)

    assert digest == write(*events)[1]
    assert body.count('"steps"') == (2 if place in (2, 3) else 1)


def test_the_digest_covers_quiet_steps_that_no_line_tells_yet():
    assert write(quiet_step(1))[1] != write()[1]
    assert write(quiet_step(1))[1] == write(quiet_step(1), "flush")[1]


def test_half_a_character_in_an_id_is_escaped_and_comes_back():
    arrived = Arrived(0, "half \ud83d", 4, 3, 0, "\udc00")

    body, _ = write(arrived)

    assert body.isascii()
    assert list(read_events(['{"event":"header","version":1}\n', body])) == [arrived]


def test_whole_characters_are_written_as_they_are():
    body, _ = write(Arrived(0, "größe 😀", 4, 3, 0, ""))

    assert "größe 😀" in body


@pytest.mark.parametrize(
    "step",
    [
        StepRan(9, 1, 0, 7, 1, 2, (("a", 0, 5),), (("a", (3, 4)), ("b", (5,))), (), (), 5, 1),
        StepRan(9, 1, 0, 7, 1, 2, (("a", 0, 5), ("b", 1, 2)), (), ("x", "y"), ("z",), 5, 1),
        StepRan(
            9, 1, 0, 7, 1, 2, (('q"\\\n\x00', 0, 5),), (), ("zwölf ✓",), ("half \ud83d",), 5, 1
        ),
        busy_step(3),
    ],
)
def test_the_line_of_a_step_is_that_of_its_json(step):
    facts = {"event": step.kind} | {item.name: getattr(step, item.name) for item in fields(step)}
    escapes = any(not name.isascii() and "\ud83d" in name for name in step.left)

    assert event_line(step) == (
        json.dumps(facts, separators=(",", ":"), ensure_ascii=escapes) + "\n"
    )


def test_the_digest_is_that_of_the_body_however_many_lines():
    num_lines = 2 * DIGESTED_AT_ONCE // len(event_line(busy_step(1))) + 7

    body, digest = write(*map(busy_step, range(num_lines)))

    assert len(body) > 2 * DIGESTED_AT_ONCE
    assert digest == sha256(body.encode()).hexdigest()


def steps_together(joined: tuple[str, ...], *changes: StepChange) -> StepsRan:
    """Steps 3 to 8, of 2, 3, 2, 2, 4 and 2 ns, from 10 on."""
    return StepsRan(3, [2, 3, 2, 2, 4, 2], [10, 12, 15, 17, 19, 23, 25], 2, joined, 4, [*changes])


@pytest.mark.parametrize("name", ["a", 'q"\\\n', "zwölf ✓", "half \ud83d"])
@pytest.mark.parametrize("places", [(), (3,), (8,), (3, 4, 8), (5, 7), (3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("before", [busy_step(2), quiet_step(2)])
def test_steps_told_together_are_written_as_their_parts(before, places, name):
    changes = [StepChange(place, [(name, place), ("b", 9)], 5, place) for place in places]
    steps = steps_together((), *changes)
    file, in_parts = StringIO(), StringIO()
    together, one_by_one = EventLogWriter(file, {}), EventLogWriter(in_parts, {})
    for writer in (together, one_by_one):
        writer.write([before])
    together.write_steps(steps)
    one_by_one.write(steps.parts())
    for writer in (together, one_by_one):
        writer.write([quiet_step(9), busy_step(10)])

    assert file.getvalue() == in_parts.getvalue()
    assert together.digest() == one_by_one.digest()
    assert file.getvalue().count('"event":"step"') == len(places) + 1 + (before == busy_step(2))


def test_steps_told_together_are_not_kept_until_other_events_come():
    writer, ends = EventLogWriter(Sink(), {}), list(range(1_001))
    changes = [StepChange(place, [("a", place)], 5, 0) for place in range(1, 1_001)]
    steps = StepsRan(1, [1] * 1_000, ends, 1, (), 1, changes)
    writer.write_steps(steps)
    tracemalloc.start()
    for _ in range(5):
        writer.write_steps(steps)
    num_kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # A thousand lines have 180 kB.
    assert num_kept < 100_000


class Sink(StringIO):
    """A file that is on no disk and in no memory."""

    def write(self, text):
        return len(text)


def test_the_parts_of_steps_told_together_say_when_each_was_and_who_joined():
    changes = StepChange(3, [], 6, 0), StepChange(6, [("a", 7)], 5, 0)

    assert list(steps_together(("x",), *changes).parts()) == [
        StepRan(12, 3, 10, 2, 2, 2, (), (), ("x",), (), 6, 0),
        QuietSteps(17, 4, 12, 2, 2),
        StepRan(19, 6, 17, 2, 2, 2, (), (("a", (7,)),), (), (), 5, 0),
        QuietSteps(25, 7, 19, 2, 2),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", "0"),
        ("t", True),
        ("step", 1.5),
        ("chunks", 1),
        ("chunks", [["a", 0]]),
        ("chunks", [[1, 0, 1]]),
        ("blocks", [["a", ["b"]]]),
        ("joined", [None]),
    ],
)
def test_a_value_of_another_type_is_told_with_its_line(name, value):
    facts = {**json.loads(event_line(busy_step(1))), name: value}
    lines = ['{"event":"header","version":1}\n', json.dumps(facts) + "\n"]

    with pytest.raises(EventLogError, match=f"line 2: {name} is .*, as in no step event"):
        list(read_events(lines))
