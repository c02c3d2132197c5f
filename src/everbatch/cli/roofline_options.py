"""The flags of `everbatch roofline`: the step, the model, the device, what no data sheet tells.

Belongs here: names, help and parsing. Not here: what becomes of them (roofline.py), defaults and
limits of the full model (costs.roofline).
"""

import re
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any, TypeVar

import click

from everbatch.cli.sections import SectionedOption
from everbatch.costs.device import DEVICE_SIZES
from everbatch.costs.model import MODEL_SIZES
from everbatch.costs.roofline import RooflineOptions

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_COUNT = 1 << 40
DEFAULT_CONTEXT = 1024
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


class Size(click.ParamType[float]):
    """A number above 0 in SI units: "3.35e12", "3.35T"."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = re.fullmatch(r"\s*(.*?)\s*([kMGTP]?)\s*", str(value))
        try:
            size = float(match[1]) * _FACTORS[match[2]] if match else 0.0
        except ValueError:
            size = 0.0
        if not isfinite(size) or size <= 0:
            self.fail(
                f"{value!r} is no number above 0: write 3.35e12 or 3.35T (k, M, G, T, P)",
                param,
                ctx,
            )
        return size


_HELP = {
    "num_params": "Parameters.",
    "num_layers": "Layers.",
    "num_heads": "Heads of queries. Default: hidden size / head size.",
    "num_kv_heads": "Heads of keys and values.",
    "head_dim": "Numbers in a head.",
    "hidden_size": "Numbers in a hidden state.",
    "bytes_per_value": "Bytes of a weight, and of a number in the KV cache.",
    "flops": "FLOP/s, dense, in the numbers' format.",
    "memory_bandwidth": "B/s of the device's memory.",
    "memory": "Bytes of the device's memory.",
    "link_bandwidth": "B/s between two devices, one direction.",
    "pcie_bandwidth": "B/s to the host, one direction.",
}

_step = partial(click.option, cls=SectionedOption, section="The step")
_model = partial(click.option, cls=SectionedOption, section="Sizes of the model")
_device = partial(click.option, cls=SectionedOption, section="Sizes of the device")
_full = partial(click.option, cls=SectionedOption, section="The full model")
_defaults = RooflineOptions()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _number(name: str, help: str) -> Callable[[Command], Command]:
    default = getattr(_defaults, name)
    return _full(_flag(name), type=type(default), default=default, show_default=True, help=help)


_OPTIONS = [
    _step(
        "--prefill",
        "prefills",
        type=click.IntRange(1, MAX_COUNT),
        multiple=True,
        help="Tokens of a prompt that the step computes. May be repeated.",
    ),
    _step(
        "--prefill-start",
        type=click.IntRange(0, MAX_COUNT),
        default=0,
        show_default=True,
        help="Tokens of each prompt that are in the KV cache already.",
    ),
    _step(
        "--decode",
        "num_decodes",
        type=click.IntRange(0, MAX_COUNT),
        help="Requests that decode. Default: 1, with --prefill 0.",
    ),
    _step(
        "--context",
        type=click.IntRange(1, MAX_COUNT),
        default=DEFAULT_CONTEXT,
        show_default=True,
        help="Tokens whose keys and values each decode reads.",
    ),
    *(
        _step(
            _flag(name),
            type=click.IntRange(0, MAX_COUNT),
            default=0,
            show_default=True,
            help=help,
        )
        for name, help in (
            ("swapped_blocks", "KV blocks that go to the host or come back."),
            ("copied_blocks", "KV blocks that are copied."),
        )
    ),
    *(_model(_flag(name), type=Size(), help=_HELP[name]) for name in MODEL_SIZES),
    *(_device(_flag(name), type=Size(), help=_HELP[name]) for name in DEVICE_SIZES),
    _number("tensor_parallel_size", "Devices that share each layer."),
    _number("block_size", "Tokens in a KV block."),
    _number("compute_efficiency", "Part of the FLOP rate that is reached."),
    _number("memory_efficiency", "Part of the memory's bandwidth that is reached."),
    _number("link_efficiency", "Part of the links' bandwidths that is reached."),
    _number("host_s_per_step", "Seconds of the host in every step."),
    _number("host_s_per_sequence", "Seconds of the host for each request in a step."),
    _number("all_reduce_latency_s", "Seconds that an all-reduce takes at least."),
]


def roofline_options(command: Command) -> Command:
    """Add the flags of the step, the model, the device and the full model to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sizes_given(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Give those of the sizes that the user gave."""
    return {name: given[name] for name in names if given[name] is not None}
