"""[hardware] and [model] of a scenario: sizes in SI units, and what follows from them.

Belongs here: reading the two tables; the costs that preemption_mode auto compares. Not here: known
devices and models by name, which come with the clocks that measure time. Called by scenario.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown
from everbatch.base.units import NS_PER_S
from everbatch.scheduler.config import PreemptionCosts

LONGEST_S = 1e6
"""Of one block or token; more says nothing more."""
HARDWARE_SIZES = ("flops", "memory_bandwidth", "memory", "pcie_bandwidth")
MODEL_SIZES = (
    "num_params",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "bytes_per_value",
)


@dataclass(frozen=True, slots=True)
class PresetSpec:
    """[hardware] or [model]: the name of a known one, or its sizes in SI units."""

    name: str = ""
    sizes: Mapping[str, float] = field(default_factory=dict)


def read_preset(tables: Fields, key: str, sizes: tuple[str, ...]) -> PresetSpec | None:
    """Read the table `key`; None if there is none."""
    if key not in tables:
        return None
    section = Fields(tables.get(key), f"[{key}]", ("name", *sizes))
    name = section.text("name", "", may_be_empty=False)
    given = {
        size: section.number(size, 0.0, 0.0, above_low=True) for size in sizes if size in section
    }
    if not name and not given:
        raise ConfigError(f"[{key}] lacks name, or {', '.join(sizes)}")
    return PresetSpec(name, given)


def preemption_costs(
    hardware: PresetSpec | None, model: PresetSpec | None, block_size: int
) -> PreemptionCosts:
    """Give what moving a block out and back, and computing a token again, take at best.

    A block goes over the link twice; a token takes 2 FLOPs a parameter. Source: PagedAttention,
    section 7.3, compares the same two.
    """
    flops, link = _sizes(hardware, "hardware", ("flops", "pcie_bandwidth"))
    num_params, *kv_sizes = _sizes(
        model, "model", ("num_params", "num_layers", "num_kv_heads", "head_dim", "bytes_per_value")
    )
    # Keys and values.
    bytes_per_token = 2.0
    for size in kv_sizes:
        bytes_per_token *= size
    swap_s = 2 * block_size * bytes_per_token / link
    recompute_s = 2 * num_params / flops
    return PreemptionCosts(_whole_ns(swap_s), _whole_ns(recompute_s))


def _sizes(preset: PresetSpec | None, key: str, names: tuple[str, ...]) -> list[float]:
    if preset is None:
        raise ConfigError(
            f"preemption_mode auto compares the costs of swapping and recomputing: give [{key}] "
            f"{', '.join(names)}, or choose recompute or swap"
        )
    missing = [name for name in names if name not in preset.sizes]
    if not missing:
        return [preset.sizes[name] for name in names]
    known = ""
    if preset.name:
        known = f" (the name {shown(preset.name)} tells no sizes yet: only numbers are known)"
    raise ConfigError(
        f"preemption_mode auto needs [{key}] {', '.join(missing)}{known}, or choose recompute or "
        "swap"
    )


def _whole_ns(seconds: float) -> int:
    """Round to nanoseconds, but never down to nothing."""
    return max(1, round(min(seconds, LONGEST_S) * NS_PER_S))
