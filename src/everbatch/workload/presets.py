"""[hardware] and [model] of a scenario: a known one by name, or sizes in SI units, or both.

Belongs here: reading the two tables; a size beside a name replaces what the name tells. Not here:
which devices and models are known, and what follows from their sizes (costs). Called by
scenario.py.
"""

from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.costs.device import DEVICE_SIZES, Device, find_device
from everbatch.costs.model import MODEL_SIZES, Model, find_model


def read_hardware(tables: Fields, folder: Path = Path()) -> Device | None:
    """Read [hardware]; None if there is none. A file that it names starts at `folder`."""
    if "hardware" not in tables:
        return None
    name, sizes = _read_section(tables, "hardware", DEVICE_SIZES)
    device = find_device(name, folder) if name else Device()
    return device.with_sizes(sizes)


def read_model(tables: Fields, folder: Path = Path()) -> Model | None:
    """Read [model]; None if there is none. A file that it names starts at `folder`."""
    if "model" not in tables:
        return None
    name, sizes = _read_section(tables, "model", MODEL_SIZES)
    model = find_model(name, folder) if name else Model()
    return model.with_sizes(sizes)


def _read_section(tables: Fields, key: str, sizes: tuple[str, ...]) -> tuple[str, dict[str, float]]:
    """Give the name, "" if there is none, and the sizes given."""
    section = Fields(tables.get(key), f"[{key}]", ("name", *sizes))
    name = section.text("name", "", may_be_empty=False)
    given = {
        size: section.number(size, 0.0, 0.0, above_low=True) for size in sizes if size in section
    }
    if not name and not given:
        raise ConfigError(f"[{key}] lacks name, or {', '.join(sizes)}")
    return name, given
