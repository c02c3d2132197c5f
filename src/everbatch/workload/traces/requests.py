"""The requests of a trace, as a source for a run. They are named by their row in the file, from 0.

Belongs here: making requests of rows. Not here: which rows (selection). Called by workload_section.
"""

from collections.abc import Iterator

from everbatch.workload.clients import AS_THEY_ARE, Clients, Leaving
from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.traces.formats import Trace
from everbatch.workload.traces.rows import NO_EXTRAS, TraceRow, prefix_tokens
from everbatch.workload.traces.selection import Selection, told


class TraceRequests:
    """Streams a trace: of the file it keeps a window of rows. ConfigError where it is broken."""

    num_requests: int | None = None

    def __init__(self, trace: Trace, selection: Selection, clients: Clients = AS_THEY_ARE) -> None:
        self._trace = trace
        self._clients = clients
        self._leaving = clients.leaving(selection.seed)
        self._rows: Iterator[tuple[int, TraceRow]] = selection.rows(trace)
        self._next = next(self._rows, None)

    def peek(self) -> int | None:
        return None if self._next is None else self._next[1].arrival_ns

    def pop(self) -> RequestSpec:
        assert self._next is not None
        number, row = self._next
        self._next = next(self._rows, None)
        return _request_of(number, row, self._clients, self._leaving)

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """A trace goes on whatever happens to its requests."""

    def notes(self) -> list[str]:
        """Say as what the trace is read, and what of it was left out so far."""
        name = self._trace.file.path.name
        remarks = (f"{name}: {note}" for note in told(self._trace.remarks))
        return [f"read {self._trace.title}", *remarks]


def _request_of(number: int, row: TraceRow, clients: Clients, leaving: Leaving) -> RequestSpec:
    """Make the request of a row whose times are those of the run."""
    arrival, num_tokens, extras = row.arrival_ns, row.prompt_tokens, row.extras
    assert arrival is not None
    max_tokens = clients.max_tokens or extras.max_tokens or row.output_tokens
    if extras is NO_EXTRAS and clients is AS_THEY_ARE:
        prompt = Prompt(num_tokens, (Segment(None, num_tokens),))
        return RequestSpec(str(number), number, arrival, prompt, row.output_tokens, max_tokens)
    return RequestSpec(
        id=str(number),
        position=number,
        arrival=arrival,
        prompt=Prompt(num_tokens, _segments(extras.prefix, num_tokens)),
        output_tokens=row.output_tokens,
        max_tokens=max_tokens,
        priority=extras.priority,
        tenant=extras.tenant,
        num_samples=extras.num_samples,
        abort_at=leaving(arrival, extras.abort_ns),
        deadline=clients.deadline(extras.deadline_ns),
    )


def _segments(prefix: tuple[Segment, ...], num_tokens: int) -> tuple[Segment, ...]:
    own = num_tokens - prefix_tokens(prefix)
    return (*prefix, Segment(None, own)) if own else prefix
