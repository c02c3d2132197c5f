"""Step times of a replay, fitted to the very log that is replayed.

For `replay --set` where nobody says how long other steps take. Belongs here: reading the log once
more, and what is told of the fit. Not here: fitting (calibrate). Called by the command line.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError, EventLogError
from everbatch.calibration.calibrate import ALL, Calibration, calibrate
from everbatch.calibration.steps import read_log
from everbatch.sim.step_times import WatchedRegion


@dataclass(frozen=True, slots=True)
class OwnStepTimes:
    """A fit to the log that is replayed."""

    fit: Calibration

    def step_time(self) -> WatchedRegion:
        """Give the model for one run, which counts the steps for which the log had no like."""
        return WatchedRegion(self.fit.profile.step_time())

    def told(self) -> str:
        """Say what it is worth."""
        errors = self.fit.errors[ALL]
        return (
            f"step times: fitted to this log; of {errors.num_steps:,} steps that the fit did not "
            f"see one is {errors.mean:.1%} off in the mean, all together {errors.total:+.1%}"
        )

    def facts(self) -> dict[str, Any]:
        """Give the same for programs."""
        return {
            "num_fitted_steps": self.fit.num_fitted_steps,
            "held_out": {kind: asdict(errors) for kind, errors in self.fit.errors.items()},
        }


def own_step_times(path: Path, version: str) -> OwnStepTimes:
    """Fit step times to an event log; ConfigError says why that cannot be done, and the way out."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            return OwnStepTimes(calibrate([read_log(file, path.name)], version))
    except EventLogError as error:
        raise ConfigError(
            "another configuration makes other steps, and this log does not tell how long those "
            f"take ({error}): give --clock SCENARIO, whose [clock] does"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read the event log {path} ({error.strerror})") from error
