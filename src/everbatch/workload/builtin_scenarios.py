"""The scenarios that come with everbatch, and the template for new ones.

They are packaged TOML files; the first comment line of each says what it shows. Called by the
command line.
"""

from importlib.resources import files
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.fields import did_you_mean, shown
from everbatch.base.paths import exists, is_folder
from everbatch.workload.scenario import Scenario, parse_scenario, read_scenario

_FOLDER = "builtin"
_SUFFIX = ".toml"
_TEMPLATE = "template.toml"


def builtin_names() -> list[str]:
    """Give the names of the built-in scenarios, in alphabetical order."""
    folder = files("everbatch.workload") / _FOLDER
    names = [item.name for item in folder.iterdir() if item.name.endswith(_SUFFIX)]
    return sorted(name.removesuffix(_SUFFIX) for name in names)


def builtin_text(name: str) -> str:
    """Give a built-in scenario as it is packaged; ConfigError if there is none of that name."""
    names = builtin_names()
    if name not in names:
        raise ConfigError(
            f"there is no built-in scenario {shown(name)}{did_you_mean(name, names)}; "
            f"there are {', '.join(names)}"
        )
    packaged = files("everbatch.workload") / _FOLDER / f"{name}{_SUFFIX}"
    return packaged.read_text(encoding="utf-8")


def builtin_summary(name: str) -> str:
    """Give the line that says what a built-in scenario shows."""
    return builtin_text(name).partition("\n")[0].lstrip("# ")


def template_text() -> str:
    """Give a scenario with every option and what it means; it runs as it is."""
    return (files("everbatch.workload") / _TEMPLATE).read_text(encoding="utf-8")


def find_scenario(name: str) -> Scenario:
    """Read the scenario file `name`, "-" for standard input, or else the built-in one."""
    path = Path("/dev/stdin" if name == "-" else name)
    if exists(path) and not is_folder(path):
        return read_scenario(path)
    names = builtin_names()
    if name in names:
        return parse_scenario(builtin_text(name), name, f"built-in scenario {name}")
    raise ConfigError(
        f"there is no scenario file {shown(name)} and no built-in scenario of that name"
        f"{did_you_mean(name, names)}; `everbatch simulate` lists the built-in ones"
    )
