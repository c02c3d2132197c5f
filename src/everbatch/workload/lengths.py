"""How many tokens synthetic prompts and outputs have: fixed, uniform, lognormal, or as in a trace.

Belongs here: reading `prompt` and `output` of [workload], and drawing. Prompts and outputs draw
from streams of their own; lengths of one and the same file are drawn together, row by row, since
long prompts and short outputs may go together. Called by workload_section and arrivals.
"""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.workload.random_draws import Draw, exp, ln, normal, stream
from everbatch.workload.requests import MAX_TOKENS
from everbatch.workload.traces.formats import FORMATS, open_trace

LengthDraw = Callable[[Draw], int]
PairDraw = Callable[[], tuple[int, int]]

KINDS = ("fixed", "uniform", "lognormal", "empirical")
MAX_CV = 100
_KEYS = {
    "fixed": ("tokens",),
    "uniform": ("min", "max"),
    "lognormal": ("mean", "cv", "min", "max"),
    "empirical": ("file", "format"),
}


@dataclass(frozen=True, slots=True)
class LengthFile:
    """The lengths of a trace, of its rows that have both."""

    prompts: "array[int]"
    outputs: "array[int]"
    notes: tuple[str, ...]
    """As what it is read, and which rows are not drawn from."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths of a workload, to be drawn."""

    prompt: LengthDraw | LengthFile
    output: LengthDraw | LengthFile

    def drawer(self, seed: int) -> PairDraw:
        """Give what draws (prompt tokens, output tokens); the same ones for the same seed."""
        draw_prompt = stream(seed, "prompt lengths").random
        draw_output = stream(seed, "output lengths").random
        prompt, output = self.prompt, self.output
        if isinstance(prompt, LengthFile) and prompt is output:
            prompts, outputs, count = prompt.prompts, prompt.outputs, len(prompt.prompts)

            def draw_row() -> tuple[int, int]:
                row = int(draw_prompt() * count)
                return prompts[row], outputs[row]

            return draw_row
        of_prompt = _of_file(prompt.prompts) if isinstance(prompt, LengthFile) else prompt
        of_output = _of_file(output.outputs) if isinstance(output, LengthFile) else output
        return lambda: (of_prompt(draw_prompt), of_output(draw_output))

    def notes(self) -> list[str]:
        """Say as what files are read, and which of their rows are not drawn from."""
        files = [part for part in (self.prompt, self.output) if isinstance(part, LengthFile)]
        return list(dict.fromkeys(note for file in files for note in file.notes))


def read_lengths(section: Fields, base_dir: Path) -> Lengths:
    """Read `prompt` and `output` of a table; both must be there."""
    files: dict[tuple[Path, str | None], LengthFile] = {}
    parts = []
    for key in ("prompt", "output"):
        section.required(key, "give how many tokens, or { lengths = …, … }")
        parts.append(_read_part(section, key, base_dir, files))
    return Lengths(*parts)


def _read_part(
    section: Fields, key: str, base_dir: Path, files: dict[tuple[Path, str | None], LengthFile]
) -> LengthDraw | LengthFile:
    if isinstance(section.get(key), int):
        return _fixed(section.integer_or(key, 1, 1, MAX_TOKENS))
    where = f"{section.where} {key}"
    all_keys = dict.fromkeys(name for names in _KEYS.values() for name in names)
    table = Fields(section.get(key), where, ("lengths", *all_keys))
    table.required("lengths", f"one of {', '.join(KINDS)}")
    kind = table.one_of("lengths", "", KINDS)
    for name in all_keys:
        if name in table and name not in _KEYS[kind]:
            raise ConfigError(
                f"{where} has {name}, which lengths {kind} do not have: they have "
                f"{', '.join(_KEYS[kind])}"
            )
    if kind == "empirical":
        table.required("file", "a trace whose lengths are drawn")
        path = base_dir / table.text("file", "", may_be_empty=False)
        format = table.one_of("format", "", FORMATS) if "format" in table else None
        if (path, format) not in files:
            files[path, format] = _read_file(path, format)
        return files[path, format]
    if kind == "fixed":
        table.required("tokens", "how many")
        return _fixed(table.integer_or("tokens", 1, 1, MAX_TOKENS))
    if kind == "lognormal":
        return _read_lognormal(table)
    table.required("min", "the fewest tokens")
    table.required("max", "the most tokens")
    low, high = _bounds(table)
    return lambda draw: low + int(draw() * (high - low + 1))


def _bounds(table: Fields) -> tuple[int, int]:
    low = table.integer_or("min", 1, 1, MAX_TOKENS)
    return low, table.integer_or("max", MAX_TOKENS, low, MAX_TOKENS)


def _fixed(count: int) -> LengthDraw:
    return lambda draw: count


def _read_lognormal(table: Fields) -> LengthDraw:
    """Mean and coefficient of variation are those before `min` and `max` cut."""
    table.required("mean", "the mean number of tokens")
    table.required("cv", "standard deviation over mean")
    low, high = _bounds(table)
    mean = table.number("mean", 1.0, 1.0, MAX_TOKENS)
    cv = table.number("cv", 1.0, 0.0, MAX_CV)
    variance = ln(1 + cv * cv)
    location, scale = ln(mean) - variance / 2, math.sqrt(variance)

    def draw_one(draw: Draw) -> int:
        # Beyond e**40 every length is cut anyway.
        power = min(max(location + scale * normal(draw), -40.0), 40.0)
        return min(max(math.floor(exp(power) + 0.5), low), high)

    return draw_one


def _of_file(lengths: "array[int]") -> LengthDraw:
    count = len(lengths)
    return lambda draw: lengths[int(draw() * count)]


def _read_file(path: Path, format: str | None) -> LengthFile:
    trace = open_trace(path, format)
    prompts, outputs = array("i"), array("i")
    num_without = 0
    for _, row in trace.rows():
        if row.prompt_tokens and row.output_tokens:
            prompts.append(row.prompt_tokens)
            outputs.append(row.output_tokens)
        else:
            num_without += 1
    if not prompts:
        raise ConfigError(f"{path} has no row with a prompt and an output to draw from")
    rows, are = ("row", "is") if num_without == 1 else ("rows", "are")
    note = f"{path.name}: {num_without:,} {rows} without prompt or output {are} not drawn"
    read = f"read lengths of {trace.title}"
    return LengthFile(prompts, outputs, (read, note) if num_without else (read,))
