"""Devices: what their makers state, known by name or from a user's file.

Belongs here: rates and sizes of one device, in SI units. Not here: what a step takes on it. Read by
the models of step time, by the readers of scenarios and by the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everbatch.base.fields import Fields
from everbatch.costs.tables import check_sizes, find_table, packaged_tables

DEVICE_SIZES = ("flops", "memory_bandwidth", "memory", "link_bandwidth", "pcie_bandwidth")
"""What steps depend on."""


@dataclass(frozen=True, slots=True)
class Device:
    """Rates of one device in FLOP/s and B/s, its memory in bytes; None for what is not known.

    `flops` is dense, in bf16 or fp16 with float32 accumulation; `flops_fp8` is told for those who
    compute in fp8 and give it as `flops`. The link joins two devices, one direction.
    """

    name: str = ""
    source: str = ""
    flops: float | None = None
    flops_fp8: float | None = None
    memory_bandwidth: float | None = None
    memory: float | None = None
    link_bandwidth: float | None = None
    pcie_bandwidth: float | None = None

    def __post_init__(self) -> None:
        check_sizes("[hardware]", {name: getattr(self, name) for name in DEVICE_SIZES})

    def with_sizes(self, sizes: Mapping[str, float]) -> "Device":
        """Give the device with some rates or sizes changed."""
        changed: dict[str, Any] = dict(sizes)
        return replace(self, **changed)


def known_devices() -> list[Device]:
    """Give the devices that come with everbatch."""
    tables = packaged_tables("devices.toml")
    return [read_device(table, name, f"device {name}") for name, table in tables.items()]


def find_device(name: str, folder: Path = Path()) -> Device:
    """Give the device of that name, or the one in the TOML file `name`; ConfigError if neither.

    A path starts at `folder`.
    """
    table, title = find_table(name, "devices.toml", "device", folder)
    return read_device(table, title, name)


def read_device(table: Mapping[str, object], name: str, where: str) -> Device:
    """Read one device's table; ConfigError, beginning with `where`, if a value is impossible."""
    told = (*DEVICE_SIZES, "flops_fp8")
    fields = Fields(table, where, ("name", "source", *told))
    sizes = {size: fields.number(size, 0.0, 0.0, above_low=True) for size in told if size in fields}
    return Device(fields.text("name", name), fields.text("source", where), **sizes)
