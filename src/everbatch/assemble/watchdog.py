"""Whether a supervised process lives, by the signs that come from it and by those that do not.

Belongs here: how long is too long. Not here: who gives signs (supervised.py), what follows where
none come (supervisor.py).

Time is counted in looks, not read from a clock. Where the machine, or a container with all that is
in it, stood still, this process did, too: nobody is blamed for that time.
"""

from dataclasses import dataclass

from everbatch.assemble.supervised import MOVED, SIGN_S
from everbatch.base.errors import ConfigError

LOOK_S = SIGN_S
# The process may be late by a few signs when its cores are taken.
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 2.0, 86_400.0
# One of 80 layers of 70 billion parameters is 3.6 TFLOP in a step of 2,048 tokens, 72 s of a CPU
# that does 50 GFLOP/s: four times that, and the default of SGLang's --watchdog-timeout, too.
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Raises ConfigError for what cannot be held.

    timeout_s: how long the process may stand still before another one is started; 0: as long as it
    likes. silent_s: how long it may give no sign at all before nobody is passed on to it.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    silent_s: float = 20.0

    def __post_init__(self) -> None:
        if self.timeout_s != 0 and not MIN_TIMEOUT_S <= self.timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"--watchdog-timeout must be 0 (no limit) or lie in [{MIN_TIMEOUT_S:g}, "
                f"{MAX_TIMEOUT_S:,.0f}] seconds, got {self.timeout_s:g}"
            )


class Watchdog:
    """Watches one process, from when it is ready. `look` is to be called each LOOK_S."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_silent = self._num_still = 0
        """Looks since it gave any sign, and since one that said it had moved."""

    def heard(self, signs: bytes) -> None:
        """Take in what the process has sent; signs may come several at once."""
        if signs:
            self._num_silent = 0
        if MOVED in signs:
            self._num_still = 0

    def look(self) -> None:
        """Let LOOK_S pass."""
        self._num_silent += 1
        self._num_still += 1

    @property
    def silent_s(self) -> float | None:
        """For how long it has given no sign, if that is too long."""
        silent_s = self._num_silent * LOOK_S
        return silent_s if silent_s > self._limits.silent_s else None

    @property
    def still_s(self) -> float | None:
        """For how long it has not moved, silent or not, if another one shall be started."""
        still_s = self._num_still * LOOK_S
        return still_s if 0 < self._limits.timeout_s < still_s else None
