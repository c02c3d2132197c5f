"""Engine options as command-line flags, shared by the commands that load a model.

Belongs here: names, help and parsing. Not here: defaults and checks (assemble.options). vLLM's
spellings are accepted as aliases.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from everbatch.assemble.options import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    EngineOptions,
)
from everbatch.base.units import parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


class ByteSize(click.ParamType[int]):
    """A size in bytes: "512MiB", "2GB", "1000000"."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_OPTIONS = [
    click.option(
        "--max-num-seqs",
        type=int,
        default=DEFAULT_MAX_NUM_SEQS,
        show_default=True,
        help="Most requests that run at once.",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=int,
        help="Most tokens computed in one step, decodes and prompts together. Default: "
        f"{DEFAULT_MAX_NUM_BATCHED_TOKENS}; without chunked prefill, max_model_len.",
    ),
    click.option(
        "--block-size", type=int, default=16, show_default=True, help="Tokens in a KV block."
    ),
    click.option(
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        type=ByteSize(),
        help='Memory for the KV cache, such as "512MiB". Default: a quarter of the free memory, '
        "at most 4 GiB.",
    ),
    click.option(
        "--num-blocks",
        "--num-gpu-blocks-override",
        type=int,
        help="Number of KV blocks, in place of --kv-cache-memory.",
    ),
    click.option(
        "--max-model-len",
        type=int,
        help="Longest prompt + output in tokens. Default: what model and KV cache allow.",
    ),
    click.option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        default=True,
        show_default=True,
        help="Let long prompts be computed over several steps.",
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=True,
        show_default=True,
        help="Reuse the KV blocks of equal beginnings of prompts.",
    ),
    click.option(
        "--long-prefill-token-threshold",
        type=int,
        default=0,
        show_default=True,
        help="Most tokens of one prompt in one step; 0: no cap of its own.",
    ),
    click.option(
        "--admission",
        type=click.Choice(["now", "prompt"]),
        default="prompt",
        show_default=True,
        help="Blocks that must be free to admit a request: for its next chunk, or its prompt.",
    ),
    click.option(
        "--watermark",
        type=float,
        default=0.0,
        show_default=True,
        help="Fraction of the blocks kept free at admission while anybody runs.",
    ),
    click.option(
        "--preemption-trigger",
        type=click.Choice(["shortage", "stall"]),
        default="shortage",
        show_default=True,
        help="Preempt when a block is lacking, or only when nothing else can run.",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of the requests that bring none.",
    ),
    click.option(
        "--event-log",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write what the scheduler does to this file, as JSON Lines.",
    ),
]


def engine_options(command: Command) -> Command:
    """Add the flags of EngineOptions to a command, and MODEL as its argument."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("model", required=False)(command)


def pop_engine_options(given: dict[str, Any]) -> EngineOptions:
    """Take what `engine_options` added out of a command's parameters."""
    names = [name for name in EngineOptions.__dataclass_fields__ if name in given]
    return EngineOptions(**{name: given.pop(name) for name in names})
