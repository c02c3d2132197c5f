"""Draws who stood in which slot when: one row a slot, one column a step or several.

A run that is wider than the terminal is folded into bands; one that would take too many bands has
several steps in a column, which then shows the most telling of their phases. Called by run_view.
"""

from dataclasses import dataclass

from rich.text import Text

from everbatch.sim.slot_history import SlotHistory, Span
from everbatch.sim.slot_phases import Phase

MAX_LINES = 54
MAX_BANDS = 6
MIN_COLUMNS = 20
RULER_STEP = 10
MAX_LABEL = 12
"""Longer ids are not written into the picture."""

STRENGTH = (
    Phase.IDLE,
    Phase.DECODE,
    Phase.HELD,
    Phase.MASKED,
    Phase.PREFILL,
    Phase.PREEMPTED,
)
"""Where one column covers several steps, the last of these is shown."""

STYLES = {
    Phase.IDLE: "dim",
    Phase.DECODE: "green",
    Phase.HELD: "yellow",
    Phase.MASKED: "magenta",
    Phase.PREFILL: "bold blue",
    Phase.PREEMPTED: "bold red",
}
GLYPHS = {
    Phase.IDLE: "·",
    Phase.DECODE: "━",
    Phase.HELD: "┄",
    Phase.MASKED: "░",
    Phase.PREFILL: "█",
    Phase.PREEMPTED: "✕",
}
ASCII_GLYPHS = {
    Phase.IDLE: ".",
    Phase.DECODE: "=",
    Phase.HELD: "~",
    Phase.MASKED: "m",
    Phase.PREFILL: "P",
    Phase.PREEMPTED: "x",
}

_Cell = tuple[Phase, str | None]


@dataclass(frozen=True, slots=True)
class _Scale:
    """How steps map to columns."""

    columns: int
    steps_per_column: int
    num_columns: int
    """Of the whole run, over all bands."""

    def column_of(self, step: int) -> int:
        return (step - 1) // self.steps_per_column

    def first_step(self, column: int) -> int:
        return column * self.steps_per_column + 1


def draw_timeline(
    history: SlotHistory, last_step: int, width: int, *, unicode: bool = True
) -> list[Text]:
    """Draw steps 1 … last_step into lines of at most `width` characters, with a legend."""
    label = len(f"slot {history.num_slots} ")
    scale = _scale(last_step, max(MIN_COLUMNS, width - label), history.num_slots)
    glyphs = GLYPHS if unicode else ASCII_GLYPHS
    rows = [_cells(history.spans(slot, last_step), scale) for slot in range(history.num_slots)]
    lines: list[Text] = []
    for start in range(0, scale.num_columns, scale.columns):
        stop = min(start + scale.columns, scale.num_columns)
        lines.append(Text("step".ljust(label) + _ruler(scale, start, stop), style="dim"))
        for slot, cells in enumerate(rows):
            # Numbered from 1, as people count.
            line = Text().append(f"slot {slot + 1}".ljust(label), style="dim")
            line.append_text(_row(cells[start:stop], glyphs))
            lines.append(line)
    lines.append(_legend(glyphs, scale))
    return lines


def _scale(last_step: int, columns: int, num_slots: int) -> _Scale:
    max_bands = max(1, min(MAX_BANDS, MAX_LINES // (num_slots + 1)))
    steps_per_column = 1
    for factor in _round_numbers(last_step):
        steps_per_column = factor
        if -(-last_step // factor) <= columns * max_bands:
            break
    return _Scale(columns, steps_per_column, -(-last_step // steps_per_column))


def _round_numbers(limit: int) -> list[int]:
    """Give 1, 2, 5, 10, 20, 50, … until one reaches `limit`."""
    numbers = [1]
    while numbers[-1] < limit:
        power = 10 ** (len(numbers) // 3)
        numbers.append((1, 2, 5)[len(numbers) % 3] * power)
    return numbers


def _cells(spans: list[Span], scale: _Scale) -> list[_Cell]:
    """Give each column the strongest phase of its steps."""
    cells: list[_Cell] = [(Phase.IDLE, None)] * scale.num_columns
    for span in spans:
        cell = (span.phase, span.request_id)
        strength = STRENGTH.index(span.phase)
        for column in range(scale.column_of(span.first), scale.column_of(span.last) + 1):
            if strength >= STRENGTH.index(cells[column][0]):
                cells[column] = cell
    return cells


def _row(cells: list[_Cell], glyphs: dict[Phase, str]) -> Text:
    """Draw one slot's columns; ids stand where their request begins to decode, if they fit."""
    line = Text()
    column = 0
    while column < len(cells):
        phase, request_id = cells[column]
        end = column
        while end < len(cells) and cells[end] == cells[column]:
            end += 1
        run = glyphs[phase] * (end - column)
        label = request_id if phase is Phase.DECODE and _fits(request_id, len(run)) else None
        if label is not None:
            line.append(label, style="bold")
            run = run[len(label) :]
        line.append(run, style=STYLES[phase])
        column = end
    return line


def _fits(request_id: str | None, room: int) -> bool:
    """Whether an id can be written over a run and leaves some of it to be seen."""
    if request_id is None or not request_id.isascii() or not request_id.isprintable():
        return False
    return len(request_id) < min(room, MAX_LABEL + 1)


def _ruler(scale: _Scale, start: int, stop: int) -> str:
    """Write the numbers of steps over their columns."""
    ruler = ""
    for column in range(start, stop, RULER_STEP):
        number = str(scale.first_step(column))
        if column + len(number) > stop:
            break
        ruler += number.ljust(RULER_STEP) if len(number) < RULER_STEP else number[:RULER_STEP]
    return ruler.rstrip()


def _legend(glyphs: dict[Phase, str], scale: _Scale) -> Text:
    words = {
        Phase.PREFILL: "prefill",
        Phase.DECODE: "decode",
        Phase.HELD: "no token",
        Phase.MASKED: "masked",
        Phase.PREEMPTED: "preempted",
        Phase.IDLE: "idle",
    }
    legend = Text()
    for phase, word in words.items():
        legend.append(glyphs[phase], style=STYLES[phase])
        legend.append(f" {word}   ")
    if scale.steps_per_column > 1:
        legend.append(f"(one column: {scale.steps_per_column:,} steps)", style="dim")
    legend.rstrip()
    return legend
