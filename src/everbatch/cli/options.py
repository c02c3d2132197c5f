"""Engine options as command-line flags, shared by the commands that load a model.

Belongs here: names, help and parsing. Not here: defaults and checks (assemble.options), which this
reads. vLLM's spellings are accepted as aliases.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from everbatch.assemble.options import DEFAULT_MAX_NUM_BATCHED_TOKENS, EngineOptions
from everbatch.base.errors import ConfigError
from everbatch.base.units import parse_bytes
from everbatch.cli.sections import SectionedOption
from everbatch.kernels.options import BACKEND_NAMES, MAX_THREADS
from everbatch.scheduler import config as choices
from everbatch.scheduler.config import TenantConfig

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {item.name: item.default for item in fields(EngineOptions)}


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


class Tenant(click.ParamType[tuple[str, TenantConfig]]):
    """A tenant's share and rate: "NAME=WEIGHT" or "NAME=WEIGHT:REQUESTS_PER_MINUTE"."""

    name = "name=weight[:rate]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, TenantConfig]:
        tenant, _, share = value.rpartition("=")
        weight, colon, rate = share.partition(":")
        try:
            config = TenantConfig(float(weight), int(rate) if colon else 0)
        except (ValueError, ConfigError) as error:
            self.fail(f"{value!r} is no NAME=WEIGHT[:REQUESTS_PER_MINUTE] ({error})", param, ctx)
        if not tenant:
            self.fail(f"{value!r} names no tenant: write NAME=WEIGHT", param, ctx)
        return tenant, config


def _choice(literal: object) -> click.Choice[str]:
    return click.Choice(get_args(literal))


def _engine_option(section: str, flag: str, *more: str, **settings: Any) -> Callable[..., Any]:
    """Make the flag of an engine option. Its default is the one that EngineOptions has, and is
    shown, but for None: what is chosen then, the help says."""
    default = _DEFAULTS[flag.partition("/")[0].removeprefix("--").replace("-", "_")]
    if default is not None:
        shown = "on" if default is True else True
        settings |= {"default": default, "show_default": shown}
    return click.option(flag, *more, cls=SectionedOption, section=section, **settings)


_sizes = partial(_engine_option, "Sizes")
_order = partial(_engine_option, "Batching and order")
_admission = partial(_engine_option, "Admission")
_preemption = partial(_engine_option, "Preemption")
_other = partial(_engine_option, "Other engine options")

_OPTIONS = [
    _sizes("--max-num-seqs", type=int, help="Most requests that run at once."),
    _sizes(
        "--max-num-batched-tokens",
        type=int,
        help="Most tokens computed in one step, decodes and prompts together. Default: "
        f"{DEFAULT_MAX_NUM_BATCHED_TOKENS}; without chunked prefill, max_model_len.",
    ),
    _sizes("--block-size", type=int, help="Tokens in a KV block."),
    _sizes(
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        type=ByteSize(),
        help='Memory for the KV cache, such as "512MiB". Default: a quarter of the free memory, '
        "at most 4 GiB.",
    ),
    _sizes(
        "--num-blocks",
        "--num-gpu-blocks-override",
        type=int,
        help="Number of KV blocks, in place of --kv-cache-memory.",
    ),
    _sizes(
        "--host-cache-memory",
        type=ByteSize(),
        help="Memory for KV blocks that are swapped out. Default: none.",
    ),
    _sizes("--num-host-blocks", type=int, help="Number of those, in place of --host-cache-memory."),
    _sizes("--swap-space", type=float, help="vLLM's way to give --host-cache-memory, in GiB."),
    _sizes(
        "--max-model-len",
        type=int,
        help="Longest prompt + output in tokens. Default: what model and KV cache allow.",
    ),
    _order(
        "--batching",
        type=_choice(choices.Batching),
        help="Whether requests join and leave at every step, or run in closed batches.",
    ),
    _order(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        help="Let long prompts be computed over several steps.",
    ),
    _order(
        "--long-prefill-token-threshold",
        type=int,
        help="Most tokens of one prompt in one step; 0: no cap of its own.",
    ),
    _order(
        "--min-prefill-tokens",
        type=int,
        help="Tokens of a step kept for prompts while they can use them.",
    ),
    _order(
        "--prefill-aging-steps",
        type=int,
        help="A prompt that got no token for so many steps goes before the decodes once; 0: off.",
    ),
    _order(
        "--policy",
        "--scheduling-policy",
        type=_choice(choices.PolicyName),
        help="Who goes first: first come; lower priority; least work left; fair shares of tenants.",
    ),
    _order(
        "--aging-steps",
        type=int,
        help="Policy priority: one level better per so many steps waited; 0: off.",
    ),
    click.option(
        "--tenant",
        "tenants",
        cls=SectionedOption,
        section="Batching and order",
        type=Tenant(),
        multiple=True,
        help="Weight of a tenant under policy vtc and, after a colon, most requests in a minute. "
        "May be repeated.",
    ),
    _admission(
        "--admission",
        type=_choice(choices.Admission),
        help="Blocks that must be free to admit a request: for its next chunk; its prompt; the "
        "peak of all who run; the whole life of all.",
    ),
    _admission(
        "--watermark",
        type=float,
        help="Fraction of the blocks kept free at admission while anybody runs.",
    ),
    _admission(
        "--backfill",
        type=_choice(choices.Backfill),
        help="Whether others may pass a head of the queue that does not fit.",
    ),
    _admission(
        "--max-queue-requests",
        type=int,
        help="Most requests that wait; more are refused with 429. 0: any number.",
    ),
    _admission(
        "--max-queue-tokens",
        type=int,
        help="Most prompt tokens that wait. 0: any number.",
    ),
    _preemption(
        "--preemption-trigger",
        type=_choice(choices.PreemptionTrigger),
        help="Preempt when a block is lacking, or only when nothing else can run.",
    ),
    _preemption(
        "--preemption-mode",
        type=_choice(choices.PreemptionMode),
        help="What a victim does to come back; auto: the cheaper, measured at start.",
    ),
    _preemption(
        "--preemption-extent",
        type=_choice(choices.PreemptionExtent),
        help="Whether a victim gives up all its blocks, or only the last ones that are needed.",
    ),
    _preemption(
        "--preemption-victim",
        type=_choice(choices.PreemptionVictim),
        help="Who yields.",
    ),
    _preemption(
        "--max-preemptions",
        type=int,
        help="Most times that one request yields; 0: any number.",
    ),
    _other(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse the KV blocks of equal beginnings of prompts.",
    ),
    _other(
        "--kernels",
        type=click.Choice(BACKEND_NAMES),
        help="What computes: C++ in bfloat16, or numpy in float32; auto: native if it was built.",
    ),
    _other(
        "--threads",
        type=click.IntRange(1, MAX_THREADS),
        help="Threads that compute. Default: what the cores we may use allow.",
    ),
    _other(
        "--pin-threads/--no-pin-threads",
        help="Keep each of them on a CPU of its own, out of those that we may use.",
    ),
    _other(
        "--seed",
        type=int,
        help="Seed of the requests that bring none.",
    ),
    _other(
        "--event-log",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write what the scheduler does to this file, as JSON Lines.",
    ),
    _other(
        "--event-log-max-size",
        type=ByteSize(),
        help='Size at which the event log goes on in a new file, such as "256MiB"; older ones are '
        "kept. Default: none.",
    ),
]


def engine_options(command: Command) -> Command:
    """Add the flags of EngineOptions to a command, and MODEL as its argument."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("model", required=False)(command)


def pop_engine_options(given: dict[str, Any]) -> EngineOptions:
    """Take what `engine_options` added out of a command's parameters."""
    given["tenants"] = _by_name(given["tenants"])
    names = [name for name in EngineOptions.__dataclass_fields__ if name in given]
    return EngineOptions(**{name: given.pop(name) for name in names})


def _by_name(tenants: tuple[tuple[str, TenantConfig], ...]) -> dict[str, TenantConfig]:
    by_name = dict(tenants)
    if len(by_name) < len(tenants):
        names = [name for name, _ in tenants]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"--tenant {twice} is given twice: give it once")
    return by_name
