"""A log of the requests that a server answered, as vLLM's benchmarks write theirs: JSON Lines.

It is a trace (format `vllm`) and what `everbatch calibrate` fits to, so that a server that was
measured can be simulated. Belongs here: its rows. Called by the command line.
"""

from collections.abc import Iterator

from everbatch.base.units import NS_PER_S
from everbatch.loadgen.figures import of_outcome
from everbatch.loadgen.records import Outcome
from everbatch.loadgen.session import Finished


def log_lines(finished: Finished) -> Iterator[str]:
    """Give a line for each request that completed, in the order in which they were sent.

    Times are seconds of Unix time, as this machine's clock had it at the start of the run.
    """
    offset = finished.started_unix_ns - finished.times.start_ns
    completed = of_outcome(finished.records, Outcome.COMPLETED)
    for record in sorted(completed, key=lambda one: (one.sent_ns or 0, one.number)):
        first, last, sent = record.first_ns, record.last_ns, record.sent_ns
        assert first is not None
        assert last is not None
        assert sent is not None
        yield (
            f'{{"request_id":"{record.number}","arrival_time":{_seconds(sent + offset)},'
            f'"input_toks":{record.num_prompt_tokens},"output_toks":{record.num_output_tokens},'
            f'"first_token_ts":{_seconds(first + offset)},'
            f'"last_token_ts":{_seconds(last + offset)}}}\n'
        )


def _seconds(time_ns: int) -> str:
    """Write a time exactly: a float of so many seconds has no nanoseconds."""
    return f"{time_ns // NS_PER_S}.{time_ns % NS_PER_S:09d}"
