"""The terms of a step's time: what a model of step time adds up, one record each.

Belongs here: the record. Made by the models of step time, shown by the command line.
"""

from dataclasses import dataclass
from typing import Literal

Medium = Literal["memory", "link", "pcie", "host"]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step: it moves bytes and computes at once, and takes the longer of the two.

    `medium` is what the bytes cross: the device's memory, the link to other devices, the one to the
    host; "host" itself moves no bytes and takes `transfer_s` of the CPU.
    """

    name: str
    formula: str
    bytes: float = 0.0
    flops: float = 0.0
    transfer_s: float = 0.0
    compute_s: float = 0.0
    medium: Medium = "memory"
    in_nominal: bool = False
    """Whether the nominal model counts it."""

    @property
    def seconds(self) -> float:
        """What the term takes."""
        return max(self.transfer_s, self.compute_s)

    @property
    def bound(self) -> str:
        """What limits it: "compute" or the medium."""
        return "compute" if self.compute_s > self.transfer_s else self.medium
