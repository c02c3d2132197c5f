"""What is known of each request when it is over: times, counts, how it ended.

Times are nanoseconds of the run's clock. Filled in by answer.py and run.py, read by figures.py.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """Its client left, as the workload wanted."""
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """The run was interrupted before."""


@dataclass(slots=True)
class Record:
    """One request. `asked_` are the lengths that the workload wants, `counted_` the server's own.

    Latencies count from `due_ns`, when it should have been sent, whatever held it up.
    """

    number: int
    due_ns: int
    asked_prompt_tokens: int
    asked_output_tokens: int
    sent_ns: int | None = None
    held_ns: int = 0
    """How long it waited for others to end, because only so many may run."""
    late_ns: int = 0
    """How long it waited for the generator, which was busy or woke up late."""
    status: int | None = None
    token_times: "array[int]" = field(default_factory=lambda: array("q"))
    """When each event with text came; an event may hold several tokens."""
    last_ns: int | None = None
    """When the last event came that belongs to the answer itself."""
    end_ns: int | None = None
    counted_prompt_tokens: int | None = None
    counted_output_tokens: int | None = None
    outcome: Outcome = Outcome.UNFINISHED
    error: str | None = None
    """The kind of a failure, such as "http 429"."""
    message: str = ""
    refusals: list[int] = field(default_factory=list)
    """Status of each answer after which it was sent again."""

    @property
    def first_ns(self) -> int | None:
        """When the first token came. An answer may be one token without a text: the end."""
        return self.token_times[0] if self.token_times else self.last_ns

    @property
    def num_prompt_tokens(self) -> int:
        counted = self.counted_prompt_tokens
        return self.asked_prompt_tokens if counted is None else counted

    @property
    def num_output_tokens(self) -> int:
        """The server's count, or else the number of events with text."""
        counted = self.counted_output_tokens
        return len(self.token_times) if counted is None else counted

    def send_again(self) -> None:
        """Forget an answer that was a refusal."""
        assert self.status is not None
        self.refusals.append(self.status)
        self.status, self.error, self.message = None, None, ""
        self.last_ns = self.end_ns = None
        self.outcome = Outcome.UNFINISHED
