"""Scenarios, as TOML and as JSON. Read, not run."""

import json
import tomllib
from functools import cache
from pathlib import Path

from fuzz.target import Target, scratch_folder

from everbatch.base.errors import ConfigError
from everbatch.workload.scenario import read_scenario

BUILTIN = Path(__file__).parents[2] / "src" / "everbatch" / "workload"


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    path = _folder() / "scenario.toml"
    path.write_bytes(data)
    scenario = read_scenario(path)
    scenario.requests_digest()
    scenario.with_run(seed=7)


def _seeds() -> list[bytes]:
    files = [*sorted((BUILTIN / "builtin").glob("*.toml")), BUILTIN / "template.toml"]
    texts = [path.read_bytes() for path in files]
    tables = tomllib.loads(texts[0].decode())
    return [*texts, *_WORKLOADS, json.dumps(tables).encode()]


_WORKLOADS = (
    b"""[engine]
max_num_seqs = 4
max_num_batched_tokens = 64
num_blocks = 100
[clock]
kind = "nominal"
[hardware]
name = "h100-sxm"
[model]
name = "llama-3.1-8b"
[workload]
arrivals = { kind = "poisson", rate = 4.0 }
num_requests = 20
prompt_tokens = { kind = "lognormal", mean = 100, sigma = 1.0 }
output_tokens = { kind = "fixed", value = 20 }
""",
)

TARGET = Target(
    "scenario",
    _read,
    (ConfigError,),
    _seeds,
    (
        *(b"[workload]\n", b"[[faults]]\n", b"[slo]\n", b"[run]\n", b"[tenants.a]\n", b"[model]\n"),
        *(
            b"[clock]\n",
            b'kind = "roofline"\n',
            b"arrivals",
            b"num_requests = ",
            b"rate = ",
            b"at = ",
        ),
        *(
            b"burst",
            b"gamma",
            b"closed",
            b"zipf",
            b"uniform",
            b"lognormal",
            b"trace = ",
            b"horizon = ",
        ),
        *(
            b"preset = ",
            b"preemption_mode",
            b"auto",
            b"swap",
            b"host_blocks",
            b"seed = ",
            b"count = ",
        ),
    ),
)
