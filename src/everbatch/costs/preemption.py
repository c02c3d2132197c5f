"""What preemption_mode auto compares: moving a block to the host and back, computing a token again.

Called by the reader of scenarios; the real engine measures both instead.
"""

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.needs import needed
from everbatch.scheduler.config import PreemptionCosts

LONGEST_S = 1e6
"""Of one block or token; more says nothing more."""
_PURPOSE = "preemption_mode auto"
_WAY_OUT = "give it, or choose recompute or swap"
_DEVICE_SIZES = ("flops", "pcie_bandwidth")
_MODEL_SIZES = ("num_params", "num_layers", "num_kv_heads", "head_dim", "bytes_per_value")


def preemption_costs(
    device: Device | None, model: Model | None, block_size: int
) -> PreemptionCosts:
    """Give what moving a block out and back, and computing a token again, take at best.

    A block goes over the link twice; a token takes 2 FLOPs a parameter. Source: PagedAttention,
    section 7.3, compares the same two.
    """
    if device is None:
        raise _nothing_given("hardware", _DEVICE_SIZES)
    if model is None:
        raise _nothing_given("model", _MODEL_SIZES)
    flops, link = needed(device, _DEVICE_SIZES, _PURPOSE, _WAY_OUT)
    num_params, *_ = needed(model, _MODEL_SIZES, _PURPOSE, _WAY_OUT)
    assert model.kv_bytes_per_token is not None
    swap_s = 2 * block_size * model.kv_bytes_per_token / link
    recompute_s = 2 * num_params / flops
    return PreemptionCosts(_whole_ns(swap_s), _whole_ns(recompute_s))


def _nothing_given(section: str, names: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"{_PURPOSE} compares the costs of swapping and recomputing: give [{section}] name, or "
        f"{', '.join(names)}, or choose recompute or swap"
    )


def _whole_ns(seconds: float) -> int:
    """Round to nanoseconds, but never down to nothing."""
    return max(1, round(min(seconds, LONGEST_S) * NS_PER_S))
