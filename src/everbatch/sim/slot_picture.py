"""Who stood in which slot over real time, as SVG: plain text, no library, for documents.

`SlotTimes` looks on while a run goes by; `draw_slots` draws one or several runs on one axis of
seconds. Belongs here: spans in time and their picture. Not here: spans in steps (slot_history), the
terminal (cli.slot_timeline). Called by benchmarks that compare runs of an engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from everbatch.base.events import Event, StepRan
from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.slot_phases import Phase, SlotPhases

COLOURS = {
    Phase.PREFILL: "#1f5fbf",
    Phase.DECODE: "#4fa36c",
    Phase.HELD: "#e0b93c",
    Phase.MASKED: "#b9a3c9",
    Phase.PREEMPTED: "#c0392b",
    Phase.IDLE: "#ececec",
}
WORDS = {
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.HELD: "no token",
    Phase.MASKED: "masked: its request has ended, the batch has not",
    Phase.PREEMPTED: "preempted",
    Phase.IDLE: "empty",
}
WIDTH, LEFT, RIGHT = 900, 64, 24
ROW, GAP, HEAD, FOOT = 22, 4, 44, 30
MIN_PLACES = 1.0
"""A span is drawn at least so wide, else a prefill of some milliseconds would not be seen."""
DIGIT = 8
"""Places that a character of a label takes, nearly."""
TICKS = 8
"""At most, on the axis."""


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """One slot in one phase, from `start_ns` to `end_ns`; `request_id` is None if nobody's."""

    start_ns: int
    end_ns: int
    phase: Phase
    request_id: str | None


@dataclass(frozen=True, slots=True)
class SlotRows:
    """A run to be drawn: a row of spans a slot, and moments that are marked, with their names."""

    title: str
    slots: Sequence[Sequence[SlotSpan]]
    marks: Sequence[tuple[int, str]] = ()


@dataclass(slots=True)
class SlotTimes:
    """Looks on (sim.run.Observer) and keeps the spans of `num_slots` slots."""

    num_slots: int
    slots: list[list[SlotSpan]] = field(init=False)
    _phases: SlotPhases = field(init=False)
    _open: list[tuple[int, Phase, str | None]] = field(init=False)
    _now: int = 0

    def __post_init__(self) -> None:
        self.slots = [[] for _ in range(self.num_slots)]
        self._open = [(0, Phase.IDLE, None)] * self.num_slots
        self._phases = SlotPhases(self.num_slots, self._change)

    def planned(self, plan: StepPlan, step: int) -> None:
        """A step begins: spans end and begin."""
        self._now = plan.start_ns
        self._phases.planned(plan)

    def happened(self, events: Iterable[Event]) -> None:
        """A pass has ended."""
        for event in events:
            if isinstance(event, StepRan):
                self._now = event.t

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """What ended in a step, the next plan releases."""

    def idled(self, step: int) -> None:
        """Nothing runs for a while."""
        self._phases.idled()

    def close(self) -> list[list[SlotSpan]]:
        """End all spans and give them, slot by slot."""
        self._phases.idled()
        for slot in range(self.num_slots):
            self._end(slot)
        return self.slots

    def _change(self, slot: int, phase: Phase, request_id: str | None) -> None:
        if self._open[slot][1:] != (phase, request_id):
            self._end(slot)
            self._open[slot] = (self._now, phase, request_id)

    def _end(self, slot: int) -> None:
        since, phase, request_id = self._open[slot]
        if since < self._now:
            self.slots[slot].append(SlotSpan(since, self._now, phase, request_id))
            self._open[slot] = (self._now, phase, request_id)


def draw_slots(title: str, runs: Sequence[SlotRows]) -> str:
    """Draw runs below each other on one axis of seconds; gives an SVG file's text."""
    end_ns = max([1, *(span.end_ns for run in runs for row in run.slots for span in row)])
    scale = (WIDTH - LEFT - RIGHT) / end_ns
    parts: list[str] = []
    top = 0
    for run in runs:
        parts += _run(run, top, scale, end_ns)
        top += HEAD + len(run.slots) * (ROW + GAP)
    parts += _axis(top, scale, end_ns)
    parts += _legend(top + FOOT, {span.phase for run in runs for row in run.slots for span in row})
    height = top + FOOT + ROW + GAP
    name = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="#222">\n<title>{name}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _run(run: SlotRows, top: int, scale: float, end_ns: int) -> list[str]:
    parts = [f'<text x="8" y="{top + 18}" font-weight="bold">{escape(run.title)}</text>']
    rows_top = top + HEAD
    for slot, spans in enumerate(run.slots):
        y = rows_top + slot * (ROW + GAP)
        # Numbered from 1, as people count.
        parts.append(f'<text x="8" y="{y + 16}">slot {slot + 1}</text>')
        # What comes after a run has ended is as empty as a slot that nobody took.
        width = round(end_ns * scale, 1)
        parts.append(_box(LEFT, y, width, COLOURS[Phase.IDLE], None))
        parts += [part for span in spans for part in _span(span, y, scale)]
    bottom = rows_top + len(run.slots) * (ROW + GAP) - GAP
    for moment, name in run.marks:
        x = round(LEFT + moment * scale, 1)
        parts.append(
            f'<path d="M{x} {rows_top - 6}V{bottom}" stroke="#222" stroke-dasharray="3 3"/>'
            f'<text x="{x}" y="{rows_top - 9}" text-anchor="middle">{escape(name)}</text>'
        )
    return parts


def _span(span: SlotSpan, y: int, scale: float) -> list[str]:
    if span.phase is Phase.IDLE:
        return []
    x, width = LEFT + span.start_ns * scale, (span.end_ns - span.start_ns) * scale
    who = "" if span.request_id is None else f"request {span.request_id}: "
    told = f"{who}{span.phase.value}, {_ms(span.start_ns)} to {_ms(span.end_ns)} ms"
    drawn = max(width, MIN_PLACES)
    parts = [_box(round(x, 1), y, round(drawn, 1), COLOURS[span.phase], told)]
    label = span.request_id if span.phase is Phase.DECODE else None
    if label is not None and len(label) * DIGIT < width:
        middle = round(x + width / 2, 1)
        parts.append(
            f'<text x="{middle}" y="{y + 16}" text-anchor="middle" fill="#fff">'
            f"{escape(label)}</text>"
        )
    return parts


def _box(x: float, y: float, width: float, colour: str, told: str | None) -> str:
    shape = f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW}" fill="{colour}"'
    return f"{shape}/>" if told is None else f"{shape}><title>{escape(told)}</title></rect>"


def _axis(top: int, scale: float, end_ns: int) -> list[str]:
    step = _round_step(end_ns / TICKS)
    parts = []
    for tick in range(0, end_ns + 1, step):
        x = round(LEFT + tick * scale, 1)
        parts.append(
            f'<path d="M{x} {top}v5" stroke="#222"/><text x="{x}" y="{top + 19}" '
            f'text-anchor="middle">{tick / NS_PER_S:g} s</text>'
        )
    return parts


def _round_step(least: float) -> int:
    """Give 1, 2 or 5 times a power of ten nanoseconds, at least `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


def _legend(top: int, phases: set[Phase]) -> list[str]:
    parts, x = [], LEFT
    for phase, words in WORDS.items():
        if phase not in phases | {Phase.IDLE}:
            continue
        parts.append(
            f'<rect x="{x}" y="{top}" width="14" height="14" fill="{COLOURS[phase]}"/>'
            f'<text x="{x + 20}" y="{top + 12}">{words}</text>'
        )
        x += 44 + len(words) * 7
    return parts


def _ms(time_ns: int) -> str:
    return f"{time_ns / NS_PER_MS:.1f}"
