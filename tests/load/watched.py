"""What a server's process takes, and what its metrics say, at one moment and over a time."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
LIMIT_S = 180.0
"""For a server that is flooded, on a machine that does other things, too."""


def resident_bytes(pid: int) -> int:
    """Give the memory of a process that is in RAM and not a file's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not tell RssAnon")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


@dataclass(frozen=True)
class Look:
    """One moment: of metrics the sums over labels, and those of steps by kind."""

    at_s: float
    server_cpu_s: float
    client_cpu_s: float
    samples: dict[str, float]

    @classmethod
    def at(cls, url: str, pid: int) -> "Look":
        text = httpx.get(f"{url}/metrics", timeout=LIMIT_S).text
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("everbatch:")
                for key in (name, f"{name}/{sample.labels.get('kind')}"):
                    samples[key] = samples.get(key, 0.0) + sample.value
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.monotonic(), cpu_s(pid), used.ru_utime + used.ru_stime, samples)


@dataclass(frozen=True)
class Span:
    """What happened between two looks."""

    first: Look
    last: Look

    @property
    def seconds(self) -> float:
        return self.last.at_s - self.first.at_s

    def count(self, name: str) -> float:
        return self.last.samples.get(name, 0.0) - self.first.samples.get(name, 0.0)

    def rate(self, name: str) -> float:
        return self.count(name) / self.seconds

    def step_ms(self, kind: str) -> float:
        """Give the mean duration of the steps of a kind."""
        name = "forward_step_duration_seconds"
        return 1e3 * self.count(f"{name}_sum/{kind}") / max(1.0, self.count(f"{name}_count/{kind}"))

    def step_tokens(self, kind: str) -> float:
        return self.count(f"step_tokens_sum/{kind}") / max(
            1.0, self.count(f"step_tokens_count/{kind}")
        )

    def facts(self) -> dict[str, float]:
        """Give what a report shows of it."""
        told = {
            "seconds": self.seconds,
            "requests_per_s": self.rate("request_success_total"),
            "output_tokens_per_s": self.rate("generation_tokens_total"),
            "computed_tokens_per_s": self.rate("computed_tokens_total"),
            "server_cores": (self.last.server_cpu_s - self.first.server_cpu_s) / self.seconds,
            "client_cores": (self.last.client_cpu_s - self.first.client_cpu_s) / self.seconds,
        }
        for kind in ("decode", "mixed"):
            told[f"{kind}_step_ms"] = self.step_ms(kind)
            told[f"{kind}_step_tokens"] = self.step_tokens(kind)
        return {name: round(value, 3) for name, value in told.items()}
