"""How times are written in scenarios and results: as steps, or as seconds.

Inside everything counts in integers: boundaries on the clock of steps, nanoseconds on the others.
Called by the readers of a scenario and by whoever reports a run.
"""

from dataclasses import dataclass

from everbatch.base.errors import ConfigError
from everbatch.base.fields import MAX_INTEGER, Fields, shown
from everbatch.base.units import NS_PER_S

CLOCKS = ("steps", "nominal", "roofline", "kernels", "calibrated")
"""Kinds of clocks: the first counts steps, the others measure seconds."""
MAX_SECONDS = MAX_INTEGER // NS_PER_S
"""104 days: nanoseconds that every reader of JSON keeps exactly."""


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The unit in which a clock's times are written; `per_unit` of them is one inside."""

    name: str
    per_unit: int

    @property
    def is_steps(self) -> bool:
        return self.per_unit == 1

    def read(self, section: Fields, key: str, low: int = 0) -> int | None:
        """Read a key as a time, which must be above 0 if `low` is 1; None if the key is absent."""
        if key not in section:
            return None
        value = section.get(key)
        if self.is_steps and isinstance(value, float):
            raise section.wrong(key, "a whole number of steps on the clock of steps")
        time = self.parse(value)
        if time is None or time < low:
            raise section.wrong(key, self.allowed(low))
        return time

    def positive(self, value: object, what: str) -> int:
        """Give a written time that must not be 0; `what` begins the error ("[run] horizon is")."""
        time = self.parse(value)
        if not time:
            raise ConfigError(f"{what} {shown(value)}, it must be {self.allowed(1)}")
        return time

    def allowed(self, low: int) -> str:
        """Say which times can be written: from 0, or else more."""
        if self.is_steps:
            return f"an integer from {low} to {MAX_INTEGER:,}"
        return f"a number of seconds {'above' if low else 'from'} 0, up to {MAX_SECONDS:,}"

    def parse(self, value: object) -> int | None:
        """Give a written time as it is inside; None if it is none. Seconds round to nanoseconds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self.is_steps:
            return value if isinstance(value, int) and 0 <= value <= MAX_INTEGER else None
        return round(value * self.per_unit) if 0 <= value <= MAX_SECONDS else None

    def written(self, time: float) -> float:
        """Give a time, or a duration, as it stands in results."""
        return time if self.per_unit == 1 else time / self.per_unit


STEPS = TimeUnit("steps", 1)
SECONDS = TimeUnit("seconds", NS_PER_S)
