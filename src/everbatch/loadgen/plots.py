"""Line plots as SVG text: no library, no network, readable in light and dark.

Belongs here: axes, ticks, lines, legends. Not here: what is drawn (report.py). Styles are classes,
which the page gives colours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 44
TICK_PLACES = 45
"""Between two ticks, at least."""
MAX_POINTS = 400
"""Of one line; more cannot be told apart."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A named line. `is_step`: it stays at a value until the next point."""

    name: str
    points: Sequence[Point]
    is_step: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with its title and axes, both from 0. `y_top`: where y ends, if not where lines do."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_top: float | None = None


def plot_svg(plot: Plot) -> str:
    """Draw a plot; gives one <svg> element. Without a point it says so."""
    lines = [_thinned(line) for line in plot.lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return _svg(
            plot.title, f'<text class="none" x="{WIDTH / 2}" y="150">nothing to draw</text>'
        )
    xs = _Axis.up_to(max(x for x, _ in points), LEFT, WIDTH - RIGHT)
    y_top = max(y for _, y in points) if plot.y_top is None else plot.y_top
    ys = _Axis.up_to(y_top, HEIGHT - BOTTOM, TOP, to_a_tick=True)
    parts = [_grid(xs, ys), _labels(plot)]
    for index, line in enumerate(lines):
        parts.append(_path(line, index, xs, ys))
    parts.append(_legend(lines))
    return _svg(plot.title, "".join(parts))


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values from 0 to `high` to places; `ticks` are round values within."""

    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def up_to(cls, high: float, start: float, end: float, *, to_a_tick: bool = False) -> "_Axis":
        """`to_a_tick`: it ends at a tick, so that a line at `high` is not the frame's."""
        high = high if high > 0 else 1.0
        size = round_step(high / (abs(end - start) / TICK_PLACES))
        if to_a_tick:
            high = math.ceil(high / size - 1e-9) * size
        ticks = tuple(number * size for number in range(math.floor(high / size + 1e-9) + 1))
        return cls(high, start, end, ticks)

    def place(self, value: float) -> float:
        return round(self.start + value / self.high * (self.end - self.start), 1)


def round_step(size: float) -> float:
    """Give 1, 2 or 5 times a power of ten that is at least `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def short(value: float) -> str:
    """Write a tick: 0.5, 1200 as 1.2k."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:.6g}"


def _thinned(line: Line) -> Line:
    points = line.points
    if len(points) > MAX_POINTS:
        last = len(points) - 1
        chosen = (round(index * last / (MAX_POINTS - 1)) for index in range(MAX_POINTS))
        points = [points[index] for index in chosen]
    return Line(line.name, points, line.is_step)


def _grid(xs: _Axis, ys: _Axis) -> str:
    parts = []
    for tick in ys.ticks:
        y = ys.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4}">{short(tick)}</text>')
    for tick in xs.ticks:
        x = xs.place(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 16}">{short(tick)}</text>')
    return "".join(parts)


def _labels(plot: Plot) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}">'
        f"{escape(plot.x_label)}</text>"
        f'<text class="label" transform="translate(14 {middle}) rotate(-90)">'
        f"{escape(plot.y_label)}</text>"
    )


def _path(line: Line, index: int, xs: _Axis, ys: _Axis) -> str:
    if not line.points:
        return ""
    (first_x, first_y), *rest = ((xs.place(x), ys.place(y)) for x, y in line.points)
    steps = [f"M{first_x:g} {first_y:g}"]
    for x, y in rest:
        steps.append(f"H{x:g}V{y:g}" if line.is_step else f"L{x:g} {y:g}")
    name = escape(line.name)
    return f'<path class="line s{index}" d="{"".join(steps)}"><title>{name}</title></path>'


def _legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    parts = []
    x = LEFT + 10.0
    for index, line in enumerate(lines):
        parts.append(f'<line class="line s{index}" x1="{x}" x2="{x + 18}" y1="8" y2="8"/>')
        parts.append(f'<text class="tick start" x="{x + 23}" y="12">{escape(line.name)}</text>')
        x += 40 + 7 * len(line.name)
    return "".join(parts)


def _svg(title: str, inner: str) -> str:
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{inner}</svg>"
    )
