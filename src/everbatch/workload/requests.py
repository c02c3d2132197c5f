"""[[requests]] of a scenario: who arrives when, with which prompt, and what the client does.

Belongs here: reading one table, and turning it into one RequestSpec a request (`count`, `every`).
Not here: token ids (sim.texts makes them). Times are in the clock's own integers; the reader of
times is handed in, so that each clock brings its own. Called by scenario.py.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown
from everbatch.base.sample_ids import sample_ids

MAX_REQUESTS = 2_000_000
MAX_TOKENS = 1 << 30
"""Of one prompt, and of one output."""
MAX_TOKEN_ID = (1 << 31) - 1
MAX_PRIORITY = 1 << 31
MAX_SAMPLES = 65_536

KEYS = (
    "id",
    "arrival",
    "prompt_tokens",
    "prompt",
    "prompt_token_ids",
    "output_tokens",
    "max_tokens",
    "priority",
    "tenant",
    "cache_salt",
    "n",
    "abort_at",
    "deadline",
    "count",
    "every",
)
PROMPT_KEYS = ("prompt_tokens", "prompt", "prompt_token_ids")

TimeReader = Callable[[Fields, str], int | None]
"""Reads a key as a time; None if the key is absent."""


class Segment(NamedTuple):
    """A piece of a prompt: the first `tokens` ids of the stream called `text`.

    Equal names are equal streams. Without a name the ids are private to the request.
    """

    text: str | None
    tokens: int


@dataclass(slots=True)
class Prompt:
    """A prompt: its segments in order, or its token ids as they are. Nobody changes one."""

    num_tokens: int
    segments: tuple[Segment, ...] = ()
    token_ids: "array[int] | None" = None


@dataclass(slots=True)
class RequestSpec:
    """One request. Times are in the clock's own integers; `position` is its place in the file.

    Nobody changes one, though it is not frozen: making a frozen one takes several times as long.

    `output_tokens` is where the model ends by itself, end token included: only the executor knows.
    """

    id: str
    position: int
    arrival: int
    prompt: Prompt
    output_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    num_samples: int = 1
    abort_at: int | None = None
    deadline: int | None = None
    """How long it may wait for its first step."""
    abort_rank: int | None = None
    """Its place among those who leave at one moment; None: its position."""

    def facts(self) -> tuple[object, ...]:
        """Give everything that tells two workloads apart."""
        return (*self.arrival_facts(), self.abort_at, self.deadline)

    def arrival_facts(self) -> tuple[object, ...]:
        """Give what comes when, without how long its client stays."""
        ids, segments = self.prompt.token_ids, self.prompt.segments
        return (
            self.id,
            self.arrival,
            ids.tolist() if ids is not None else [(piece.text, piece.tokens) for piece in segments],
            self.output_tokens,
            self.max_tokens,
            self.priority,
            self.tenant,
            self.cache_salt,
            self.num_samples,
        )


def read_requests(tables: object, read_time: TimeReader) -> tuple[RequestSpec, ...]:
    """Read [[requests]] in the order of the file; ids are unique after `count`."""
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"requests must be a list of one table or more, not {shown(tables)}")
    specs: list[RequestSpec] = []
    ids: dict[str, str] = {}
    for index, table in enumerate(tables):
        where = f"requests[{index}]"
        for spec in _read_one(table, where, len(specs), read_time):
            for request_id in _ids_of(spec):
                if request_id in ids:
                    raise ConfigError(
                        f"{where} id is {shown(request_id)}, which {ids[request_id]} has already: "
                        "ids must be unique"
                    )
                ids[request_id] = where
            specs.append(spec)
    return tuple(specs)


def _read_one(
    table: object, where: str, position: int, read_time: TimeReader
) -> Iterator[RequestSpec]:
    section = Fields(table, where, KEYS)
    section.required("id", "each request needs a unique string")
    name = section.text("id", "", may_be_empty=False)
    section.required("output_tokens", "after so many the model ends by itself")
    arrival = read_time(section, "arrival") or 0
    prompt = _read_prompt(section)
    output_tokens = section.integer_or("output_tokens", 1, 1, MAX_TOKENS)
    count = section.integer("count", None, 1, MAX_REQUESTS - position)
    if "every" in section and count is None:
        raise ConfigError(f"{where} has every without count: say how many arrive")
    every = read_time(section, "every") or 0
    max_tokens = section.integer_or("max_tokens", output_tokens, 1, MAX_TOKENS)
    priority = section.integer_or("priority", 0, -MAX_PRIORITY, MAX_PRIORITY)
    tenant, cache_salt = section.text("tenant", ""), section.text("cache_salt", "")
    num_samples = section.integer_or("n", 1, 1, MAX_SAMPLES)
    abort_at, deadline = read_time(section, "abort_at"), read_time(section, "deadline")
    for copy in range(1 if count is None else count):
        yield RequestSpec(
            id=name if count is None else f"{name}{copy}",
            position=position + copy,
            arrival=arrival + copy * every,
            prompt=prompt,
            output_tokens=output_tokens,
            max_tokens=max_tokens,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            num_samples=num_samples,
            abort_at=abort_at,
            deadline=deadline,
        )


def _ids_of(spec: RequestSpec) -> list[str]:
    """Give a request's id, and those of its samples where there are several."""
    if spec.num_samples == 1:
        return [spec.id]
    return [spec.id, *sample_ids(spec.id, spec.num_samples)]


def _read_prompt(section: Fields) -> Prompt:
    given = [key for key in PROMPT_KEYS if key in section]
    if len(given) != 1:
        has = " and ".join(given) if given else "no prompt"
        raise ConfigError(f"{section.where} has {has}: give one of {', '.join(PROMPT_KEYS)}")
    if given == ["prompt_tokens"]:
        num_tokens = section.integer_or("prompt_tokens", 0, 1, MAX_TOKENS)
        return Prompt(num_tokens, (Segment(None, num_tokens),))
    if given == ["prompt_token_ids"]:
        return _token_ids(section)
    segments = _segments(section)
    num_tokens = sum(segment.tokens for segment in segments)
    if not 1 <= num_tokens <= MAX_TOKENS:
        raise ConfigError(
            f"{section.where} prompt has {num_tokens:,} tokens in all, it must have from 1 to "
            f"{MAX_TOKENS:,}"
        )
    return Prompt(num_tokens, segments)


def _token_ids(section: Fields) -> Prompt:
    ids = section.get("prompt_token_ids")
    wanted = f"a list of one or more integers from 0 to {MAX_TOKEN_ID:,}"
    if not isinstance(ids, list) or not ids:
        raise section.wrong("prompt_token_ids", wanted)
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise ConfigError(
                f"{section.where} prompt_token_ids holds {shown(token_id)}, it must be {wanted}"
            )
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise ConfigError(
                f"{section.where} prompt_token_ids holds {token_id}, it must be {wanted}"
            )
    return Prompt(len(ids), token_ids=array("i", ids))


def _segments(section: Fields) -> tuple[Segment, ...]:
    tables = section.get("prompt")
    if not isinstance(tables, list) or not tables:
        raise section.wrong("prompt", "a list of one or more { text = …, tokens = … }")
    segments: list[Segment] = []
    for index, table in enumerate(tables):
        piece = Fields(table, f"{section.where} prompt[{index}]", ("text", "tokens"))
        piece.required("tokens", "say how many tokens of the text")
        text = piece.text("text", "", may_be_empty=False) if "text" in piece else None
        segments.append(Segment(text, piece.integer_or("tokens", 0, 0, MAX_TOKENS)))
    return tuple(segments)
