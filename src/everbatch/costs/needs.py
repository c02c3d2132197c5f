"""Asks a device or a model for sizes that a calculation cannot do without.

Called by all that compute with them; a size that nobody gave is the user's to give.
"""

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.costs.device import Device
from everbatch.costs.model import Model


def needed(
    part: Device | Model, names: tuple[str, ...], purpose: str, way_out: str = ""
) -> list[float]:
    """Give the sizes `names`; ConfigError says what `purpose` lacks.

    `way_out` ends the message: what else the user can do.
    """
    missing = [name for name in names if getattr(part, name) is None]
    if missing:
        section = "[hardware]" if isinstance(part, Device) else "[model]"
        of = f" ({shown(part.name)} does not tell)" if part.name else ""
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ConfigError(
            f"{purpose} needs {section} {', '.join(missing)}{of}: "
            f"{way_out or f'give it by that name, on the command line as {flags}'}"
        )
    return [getattr(part, name) for name in names]
