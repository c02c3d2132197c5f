"""Finds the table of a device or a model: packaged under a name, or in a user's file.

Belongs here: names, files and what is wrong with them. Not here: what a table holds (device.py,
model.py).
"""

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import did_you_mean, shown
from everbatch.base.paths import is_folder

MAX_FILE_BYTES = 1 << 20
"""A device has some ten lines, a config.json some hundred."""
SMALLEST_SIZE = 1e-3
LARGEST_SIZE = 1e24
_CONFIG = "config.json"


def check_sizes(section: str, sizes: Mapping[str, float | None]) -> None:
    """Refuse sizes beyond all that is real: what is computed of them stays finite."""
    for name, size in sizes.items():
        if size is not None and not SMALLEST_SIZE <= size <= LARGEST_SIZE:
            raise ConfigError(
                f"{section} {name} must lie in [{SMALLEST_SIZE:g}, {LARGEST_SIZE:g}], got {size:g}"
            )


def packaged_tables(packaged: str) -> dict[str, dict[str, Any]]:
    """Give the tables of a packaged file by name, in its order."""
    text = (files("everbatch.costs") / "data" / packaged).read_text(encoding="utf-8")
    return tomllib.loads(text)


def find_table(
    name: str, packaged: str, kind: str, folder: Path
) -> tuple[Mapping[str, object], str]:
    """Give the table that `name` means, and what it is called.

    `name` is one of the names in the packaged file, else a path from `folder`: a TOML file with the
    keys of one table; for a model a config.json too, or its folder. ConfigError says what else
    there is.
    """
    tables = packaged_tables(packaged)
    if name in tables:
        return tables[name], name
    path = folder / name
    takes_config = kind == "model"
    if takes_config and is_folder(path):
        path /= _CONFIG
    if path.suffix == ".toml":
        return _read(path, kind), path.stem
    if takes_config and path.suffix == ".json":
        title = path.resolve().parent.name if path.name == _CONFIG else path.stem
        return {"config": _read(path, kind)}, title
    files_taken = "config.json or FILE.toml" if takes_config else "FILE.toml"
    raise ConfigError(
        f"there is no {kind} {shown(name)}{did_you_mean(name, tables)}; known are "
        f"{', '.join(tables)}; or give a file, {files_taken}"
    )


def _read(path: Path, kind: str) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: it is no {kind}")
        text = raw.decode("utf-8-sig")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the {kind} {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        language = "TOML" if path.suffix == ".toml" else "JSON"
        raise ConfigError(f"{path} is not {language}: {error or 'nested too deeply'}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {shown(data)}, it must hold an object")
    return data
