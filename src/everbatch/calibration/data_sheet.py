"""Prices that data sheets imply: where a fit to a log of requests starts, and what it leans on.

In an engine that is full, requests and their context move together, so a log cannot tell their
prices apart; a data sheet tells about how large each is.
"""

from everbatch.base.units import NS_PER_S
from everbatch.costs.device import Device
from everbatch.costs.fitted import Prices
from everbatch.costs.model import Model

EFFICIENCY = 0.8
"""Of the stated rates, as costs.roofline has it."""


def sheet_prices(device: Device | None, model: Model | None) -> Prices | None:
    """Give the prices of a model on a device; None where sizes are missing.

    The weights are read once a step. A token is 2 FLOPs a parameter; a pair of query and key 4 a
    layer, head and value: a product with the key, one with the value.
    """
    if device is None or model is None or not device.flops or not device.memory_bandwidth:
        return None
    weight_bytes, kv_bytes = model.weight_bytes, model.kv_bytes_per_token
    sizes = (model.flops_per_token, model.num_layers, model.num_heads, model.head_dim)
    if not weight_bytes or not kv_bytes or any(size is None for size in sizes):
        return None
    per_byte = NS_PER_S / (EFFICIENCY * device.memory_bandwidth)
    per_flop = NS_PER_S / (EFFICIENCY * device.flops)
    flops_per_token, num_layers, num_heads, head_dim = (size or 0.0 for size in sizes)
    return Prices(
        decode_step=weight_bytes * per_byte,
        prompt_step=weight_bytes * per_byte,
        decode=flops_per_token * per_flop,
        decode_context=kv_bytes * per_byte,
        prompt_token=flops_per_token * per_flop,
        prompt_pair=4.0 * num_layers * num_heads * head_dim * per_flop,
    )
