"""[[faults]] of a scenario: what goes wrong, or comes on top, while a run goes by.

Belongs here: reading these tables, and the requests of a burst. Not here: what becomes of them
(sim). Times are in the clock's own integers. Called by run_sections.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.workload.requests import MAX_REQUESTS, MAX_TOKENS, Prompt, RequestSpec, Segment
from everbatch.workload.times import CLOCKS, TimeUnit

_KEYS_OF = {
    "slow": ("factor",),
    "fail": ("share",),
    "burst": ("count", "prompt_tokens", "output_tokens"),
    "disconnect": ("share",),
}
FAULTS = tuple(_KEYS_OF)
MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Passes that start in [start_ns, end_ns) take `factor` times as long (end None: for ever)."""

    start_ns: int
    end_ns: int | None
    factor: float

    def holds_at(self, now: int) -> bool:
        """Whether it holds for a pass that starts then."""
        return self.start_ns <= now and (self.end_ns is None or now < self.end_ns)


@dataclass(frozen=True, slots=True)
class FailingPasses:
    """Of the passes that start in [start, end) a share fails, after the time that they take."""

    start: int
    end: int | None
    share: float

    def holds_at(self, now: int) -> bool:
        """Whether it holds for a pass that starts then."""
        return self.start <= now and (self.end is None or now < self.end)


@dataclass(frozen=True, slots=True)
class Burst:
    """So many requests besides, evenly spaced over [start, end); end None: all at once."""

    start: int
    end: int | None
    count: int
    prompt_tokens: int
    output_tokens: int

    def requests(self, name: str, position: int) -> Iterator[RequestSpec]:
        """Give them as NAME-0, NAME-1 and so on; their places begin at `position`."""
        length = 0 if self.end is None else self.end - self.start
        for number in range(self.count):
            yield RequestSpec(
                f"{name}-{number}",
                position + number,
                self.start + number * length // self.count,
                Prompt(self.prompt_tokens, (Segment(None, self.prompt_tokens),)),
                self.output_tokens,
                self.output_tokens,
            )


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A share of the clients who are there at one moment leave then."""

    at: int
    share: float


Fault = Slowdown | FailingPasses | Burst | Disconnect

FAULT_KINDS: dict[type[Fault], str] = {
    Slowdown: "slow",
    FailingPasses: "fail",
    Burst: "burst",
    Disconnect: "disconnect",
}
"""What [[faults]] calls them."""


def read_faults(tables: Fields, unit: TimeUnit) -> tuple[Fault, ...]:
    """Read [[faults]]; none is none."""
    if "faults" not in tables:
        return ()
    given = tables.get("faults")
    if not isinstance(given, list):
        raise tables.wrong("faults", "a list of tables")
    return tuple(_read_fault(table, f"faults[{k}]", unit) for k, table in enumerate(given))


def _read_fault(table: object, where: str, unit: TimeUnit) -> Fault:
    own_keys = dict.fromkeys(key for keys in _KEYS_OF.values() for key in keys)
    section = Fields(table, where, ("kind", "start", "end", *own_keys))
    section.required("kind", f"one of {', '.join(FAULTS)}")
    kind = section.one_of("kind", "", FAULTS)
    for key in own_keys:
        if key in section and key not in _KEYS_OF[kind]:
            owners = " and ".join(f'"{owner}"' for owner in FAULTS if key in _KEYS_OF[owner])
            raise ConfigError(f'{where} {key} belongs to the kind {owners}, the kind is "{kind}"')
    start, end = unit.read(section, "start") or 0, unit.read(section, "end")
    if end is not None and end <= start:
        raise section.wrong("end", "later than start")
    if kind == "fail":
        return FailingPasses(start, end, _read_share(section))
    if kind == "disconnect":
        section.required("start", "when clients leave")
        if end is not None:
            raise ConfigError(f"{where} has end, but clients disconnect at one moment: drop it")
        return Disconnect(start, _read_share(section))
    if kind == "burst":
        return _read_burst(section, start, end)
    if unit.is_steps:
        raise ConfigError(
            f'{where} kind "slow" slows the device, but on the clock of steps a step has no '
            f"length: choose [clock] kind {', '.join(CLOCKS[1:])}"
        )
    section.required("factor", "how many times as long a pass takes")
    factor = section.number("factor", 1.0, 0.0, MAX_FACTOR, above_low=True)
    return Slowdown(start, end, factor)


def _read_burst(section: Fields, start: int, end: int | None) -> Burst:
    section.required("count", "how many requests come besides")
    section.required("prompt_tokens", "how long their prompts are")
    section.required("output_tokens", "after so many the model ends by itself")
    return Burst(
        start,
        end,
        section.integer_or("count", 1, 1, MAX_REQUESTS),
        section.integer_or("prompt_tokens", 1, 1, MAX_TOKENS),
        section.integer_or("output_tokens", 1, 1, MAX_TOKENS),
    )


def _read_share(section: Fields) -> float:
    return section.number("share", 1.0, 0.0, 1.0, above_low=True)
