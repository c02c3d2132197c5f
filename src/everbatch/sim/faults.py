"""Passes that fail, as the scenario's [[faults]] say. Called by the run loop.

Which ones depends on the seed and the number of the pass alone (costs.noise), so that two runs of a
seed fail alike.
"""

from collections.abc import Sequence

from everbatch.base.errors import ExecutorError
from everbatch.costs.noise import uniform
from everbatch.workload.run_sections import FailingPasses, Fault


class Failures:
    """Says of each pass, in order, whether it fails."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = [fault for fault in faults if isinstance(fault, FailingPasses)]
        self._seed = seed
        self._num_passes = 0

    def __bool__(self) -> bool:
        """Whether any pass may fail."""
        return bool(self._faults)

    def end_pass(self, start: int) -> None:
        """The next pass, which began at `start`, is over: raises ExecutorError if it has failed."""
        self._num_passes += 1
        # One draw a pass: with more shares at one time, the largest of them counts.
        share = max((fault.share for fault in self._faults if fault.holds_at(start)), default=0.0)
        if share > 0 and uniform(self._seed, self._num_passes) < share:
            raise ExecutorError("the scenario says so ([[faults]])")
