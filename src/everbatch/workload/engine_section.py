"""[engine] of a scenario: every option of the scheduler, under its public name.

Belongs here: names, defaults and types of the options, which are a public format. Not here: which
values are possible, alone and together; SchedulerConfig decides that. Called by scenario.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, did_you_mean, shown
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig, TenantConfig
from everbatch.workload.engine_presets import KEY as PRESET
from everbatch.workload.engine_presets import EnginePreset, read_preset

SIZES = ("max_num_seqs", "max_num_batched_tokens", "num_blocks")
"""Options without a default: a scenario must give them."""

DEFAULTS: dict[str, bool | int | float | str] = {
    "batching": "continuous",
    "max_model_len": 0,
    "block_size": 16,
    "num_host_blocks": 0,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "long_prefill_token_threshold": 0,
    "min_prefill_tokens": 0,
    "prefill_aging_steps": 0,
    "policy": "fcfs",
    "aging_steps": 0,
    "backfill": "none",
    "admission": "prompt",
    "watermark": 0.0,
    "preemption_trigger": "shortage",
    "preemption_mode": "recompute",
    "preemption_extent": "whole",
    "preemption_victim": "newest",
    "max_preemptions": 0,
    "max_queue_requests": 0,
    "max_queue_tokens": 0,
}
OPTIONS = (*SIZES, *DEFAULTS)

_KINDS = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a string", (str,)),
}


def read_engine(
    table: object,
    tenants: Mapping[str, TenantConfig],
    costs_of: Callable[[int], PreemptionCosts],
) -> tuple[SchedulerConfig, EnginePreset]:
    """Read [engine]; ConfigError names the option that is unknown, missing or impossible.

    Gives the preset too: blocks that are set later count as its engine counts them.
    `costs_of(block_size)` gives what preemption_mode auto compares, from [hardware] and [model]; it
    is called in that mode only.
    """
    section = Fields(table, "[engine]", (PRESET, *OPTIONS))
    for name in SIZES:
        section.required(name, "a scenario must give the sizes")
    preset = read_preset(section)
    given: dict[str, Any] = {**DEFAULTS, **preset.options}
    given.update((name, _typed(section, name)) for name in OPTIONS if name in section)
    try:
        given["num_blocks"] = preset.usable_blocks(given["num_blocks"])
        if given["preemption_mode"] == "auto":
            given["preemption_costs"] = costs_of(given["block_size"])
        return SchedulerConfig(**given, tenants=tenants), preset
    except ConfigError as error:
        raise ConfigError(f"[engine] {error}") from error


def read_setting(text: str) -> tuple[str, bool | int | float | str]:
    """Read `NAME=VALUE`, an option given beside a scenario; ConfigError if it is none."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"{shown(text)} sets nothing: write OPTION=VALUE")
    if name == PRESET:
        raise ConfigError(
            "preset stands in [engine] of a scenario alone, whose sizes count as that engine "
            "counts them: write it there"
        )
    if name not in OPTIONS:
        raise ConfigError(
            f"[engine] has no key {shown(name)}{did_you_mean(name, OPTIONS)}; its keys are "
            f"{', '.join(OPTIONS)}"
        )
    wanted = type(DEFAULTS[name]) if name in DEFAULTS else int
    if wanted is bool:
        if value not in ("true", "false"):
            raise ConfigError(f"[engine] {name} is {shown(value)}, it must be true or false")
        return name, value == "true"
    try:
        return name, wanted(value)
    except ValueError as error:
        what = _KINDS[wanted][0]
        raise ConfigError(f"[engine] {name} is {shown(value)}, it must be {what}") from error


def _typed(section: Fields, name: str) -> bool | int | float | str:
    value = section.get(name)
    wanted = type(DEFAULTS[name]) if name in DEFAULTS else int
    what, types = _KINDS[wanted]
    if not isinstance(value, types) or (isinstance(value, bool) and wanted is not bool):
        raise section.wrong(name, what)
    assert isinstance(value, bool | int | float | str)
    return value
