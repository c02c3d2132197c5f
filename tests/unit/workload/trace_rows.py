"""What tests of traces read: files of a few rows, and the rows as requests."""

from pathlib import Path

from everbatch.workload.requests import RequestSpec
from everbatch.workload.sources import RequestSource
from everbatch.workload.traces.formats import open_trace
from everbatch.workload.traces.requests import TraceRequests
from everbatch.workload.traces.selection import Selection

FILES = Path(__file__).parent / "trace_files"

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118.5,GPT-4,417,276,693,Conversation log
"""


def drained(source: RequestSource) -> list[RequestSpec]:
    """Take all requests of a source whose clients do not wait for each other."""
    specs = []
    while (arrival := source.peek()) is not None:
        specs.append(source.pop())
        assert specs[-1].arrival == arrival
    return specs


def requests_of(path: Path, format: str | None = None, **selection) -> list[RequestSpec]:
    return drained(TraceRequests(open_trace(path, format), Selection(**selection)))


def seconds(specs: list[RequestSpec]) -> list[float]:
    return [spec.arrival / 1e9 for spec in specs]


def lengths(specs: list[RequestSpec]) -> list[tuple[int, int]]:
    return [(spec.prompt.num_tokens, spec.output_tokens) for spec in specs]


def pieces(spec: RequestSpec) -> list[tuple[str | None, int]]:
    return [(piece.text, piece.tokens) for piece in spec.prompt.segments]
