"""One row of a trace, whatever its format, and the checks that all formats share.

Belongs here: what a row says, in our units. Not here: how a format writes it (public_formats,
own_formats), what is taken of it (selection). An error is a ConfigError that begins with the line's
number; who reads the file puts its name before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.base.units import NS_PER_S, div_ceil
from everbatch.workload.requests import MAX_TOKENS, Segment

MAX_STAMP_S = 1 << 36
"""Some 2,000 years: Unix time in milliseconds, taken for seconds, is beyond it."""


@dataclass(frozen=True, slots=True)
class RowExtras:
    """What only some formats tell of a request.

    `prefix` are pieces of texts that several prompts may begin with, in order; what a prompt has
    beyond them is its own. `abort_ns` is when its client left, on the trace's clock; `deadline_ns`
    how long it would have waited for the first step.
    """

    name: str | None = None
    prefix: tuple[Segment, ...] = ()
    tenant: str = ""
    priority: int = 0
    max_tokens: int | None = None
    num_samples: int = 1
    abort_ns: int | None = None
    deadline_ns: int | None = None


NO_EXTRAS = RowExtras()


@dataclass(slots=True)
class TraceRow:
    """One request of a trace. `arrival_ns` is on the trace's own clock; None: it has no times.

    Not frozen, since a trace has millions of them and frozen ones cost thrice as much to make.
    """

    line: int
    arrival_ns: int | None
    prompt_tokens: int
    output_tokens: int
    extras: RowExtras = NO_EXTRAS


def broken(line: int, message: str) -> ConfigError:
    """Make the error of a row."""
    return ConfigError(f"line {line:,}: {message}")


def wrong(line: int, column: str, value: object, allowed: str) -> ConfigError:
    """Make the error of a value."""
    return broken(line, f"{column} is {shown(value)}, it must be {allowed}")


def count_of(text: str, column: str, line: int) -> int:
    """Read a number of tokens out of a CSV file."""
    if text.isascii() and text.isdecimal() and len(text) <= 10:
        count = int(text)
        if count <= MAX_TOKENS:
            return count
    raise wrong(line, column, text, f"an integer from 0 to {MAX_TOKENS:,}")


def checked_count(value: object, column: str, line: int, low: int = 0) -> int:
    """Check a number of tokens out of a JSON file."""
    if type(value) is int and low <= value <= MAX_TOKENS:
        return value
    raise wrong(line, column, value, f"an integer from {low} to {MAX_TOKENS:,}")


def stamp_of(text: str, column: str, line: int) -> int:
    """Read seconds out of a CSV file, in nanoseconds."""
    if text.isascii() and text.isdecimal() and len(text) <= 11:
        value: int | Decimal = int(text)
    else:
        try:
            value = Decimal(text)
        except ArithmeticError:
            raise wrong(line, column, text, "a number of seconds") from None
    return checked_stamp(value, column, line)


def checked_stamp(value: object, column: str, line: int, per_unit: int = NS_PER_S) -> int:
    """Check a time out of a JSON file and give it in nanoseconds; `per_unit` of them are a unit.

    Numbers with a fraction come as decimals, so that stamps of Unix time lose nothing.
    """
    limit = MAX_STAMP_S * NS_PER_S // per_unit
    if type(value) is int and -limit <= value <= limit:
        return value * per_unit
    if type(value) is Decimal and value.is_finite() and -limit <= value <= limit:
        return round(value * per_unit)
    unit = "seconds" if per_unit == NS_PER_S else "milliseconds"
    raise wrong(line, column, value, f"a number of {unit}, at most {limit:,}")


def hashed_prefix(ids: object, block_size: int, num_tokens: int, line: int) -> tuple[Segment, ...]:
    """Give the pieces that hash ids stand for: one id a block, equal ids are equal blocks.

    Fewer ids than blocks: the rest of the prompt is its own. The last block may be a partial one.
    """
    if not isinstance(ids, list) or not {int}.issuperset(map(type, ids)):
        raise wrong(line, "hash_ids", ids, "a list of integers")
    num_blocks = div_ceil(num_tokens, block_size)
    if len(ids) > num_blocks:
        raise broken(
            line,
            f"hash_ids has {len(ids):,} ids, but a prompt of {num_tokens:,} tokens has "
            f"{num_blocks:,} blocks of {block_size}: this trace counts in other blocks, or its "
            "lengths and ids do not belong together",
        )
    pieces = [Segment(f"h{id}", block_size) for id in ids]
    if num_blocks and len(ids) == num_blocks and num_tokens % block_size:
        pieces[-1] = Segment(pieces[-1].text, num_tokens % block_size)
    return tuple(pieces)


def prefix_tokens(prefix: Iterable[Segment]) -> int:
    """Give how many tokens the pieces have together."""
    return sum([num_tokens for _, num_tokens in prefix])
