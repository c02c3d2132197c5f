"""Passes that fail and clients who disconnect, as the scenario's [[faults]] say.

Which passes fail depends on the seed and the number of the pass alone (costs.noise), and who leaves
on the seed and the request: two runs of a seed are alike. Called by the run loop.
"""

from collections.abc import Sequence

from everbatch.base.errors import ExecutorError
from everbatch.costs.noise import uniform
from everbatch.workload.faults_section import Disconnect, FailingPasses, Fault
from everbatch.workload.requests import RequestSpec


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


class Departures:
    """Says of each client at which moments it leaves, if it is still there."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = [fault for fault in faults if isinstance(fault, Disconnect)]
        self._seed = seed

    def of(self, spec: RequestSpec) -> Sequence[int]:
        """Give them, of a request that is about to come."""
        if not self._faults:
            return ()
        return [
            fault.at
            for number, fault in enumerate(self._faults)
            if spec.arrival <= fault.at and self._leaves(spec, number, fault.share)
        ]

    def _leaves(self, spec: RequestSpec, number: int, share: float) -> bool:
        if share == 1:
            return True
        # Imported for a share only: most runs have none.
        from everbatch.workload.random_draws import stream

        return stream(self._seed, f"disconnect {number} of {spec.id}").random() < share
