"""docs/traces.md names every format and key, and its examples are read."""

import re
import tomllib
from io import StringIO

import pytest
from repository import ROOT, text_of

from everbatch.base.fields import Fields
from everbatch.workload.traces.formats import FORMATS, open_trace
from everbatch.workload.traces.own_formats import PLAIN_EXTRAS, PLAIN_KEYS
from everbatch.workload.traces.public_formats import VLLM_HASHES
from everbatch.workload.traces.selection import Selection
from everbatch.workload.traces.statistics import TraceStatistics
from everbatch.workload.traces.writers import WRITTEN_FORMATS, TraceWriter
from everbatch.workload.workload_section import ARRIVALS, WORKLOAD_KEYS, read_workload

TRACES = text_of(ROOT / "docs" / "traces.md")
EXAMPLES = ROOT / "tests" / "unit" / "workload" / "trace_files"


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TRACES, re.MULTILINE | re.DOTALL)


def figures_of(name: str) -> dict:
    statistics = TraceStatistics()
    for _, row in open_trace(EXAMPLES / name).rows():
        statistics.add(row)
    return statistics.figures(20)


@pytest.mark.parametrize(
    "names",
    [
        FORMATS,
        WRITTEN_FORMATS,
        PLAIN_KEYS,
        PLAIN_EXTRAS,
        WORKLOAD_KEYS,
        ARRIVALS,
        (VLLM_HASHES,),
    ],
)
def test_every_name_is_told(names):
    assert [name for name in names if f"`{name}`" not in TRACES] == []


def test_every_figure_is_told():
    figures = figures_of("mooncake.jsonl")
    nested = (figures["prompt_tokens"], figures["prefix"], figures["arrivals"])
    names = [*figures, *(name for part in nested for name in part)]

    assert [name for name in names if f"`{name}`" not in TRACES] == []


def test_the_example_of_plain_rows_is_what_is_written(tmp_path):
    [example] = fenced("json")
    path = tmp_path / "example.jsonl"
    path.write_text(example, encoding="utf-8")
    written = StringIO()
    writer = TraceWriter(written, "jsonl")
    trace = open_trace(path)
    for number, row in Selection().rows(trace):
        writer.write(number, row)

    assert trace.format == "jsonl"
    assert (writer.num_rows, writer.lost) == (2, {})
    assert all(f'"{key}"' in written.getvalue() for key in (*PLAIN_KEYS, *PLAIN_EXTRAS))


@pytest.mark.parametrize("example", fenced("toml"))
def test_examples_of_workloads_are_read(example):
    table = Fields(tomllib.loads(example)["workload"], "[workload]", WORKLOAD_KEYS)

    assert read_workload(table, EXAMPLES, 0).source().peek() == 0
