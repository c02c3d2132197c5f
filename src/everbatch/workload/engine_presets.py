"""Presets of [engine]: the rules of other engines, as options of our scheduler.

`preset = "vllm-v1"` sets defaults; whatever else the section gives goes before them. So a user
describes his engine by its sizes and asks what another option would do. Belongs here: one entry an
engine, with the source of each rule. Not here: options (engine_section) and what they do
(scheduler). docs/simulate.md says which rules have no option. Called by engine_section.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields

KEY = "preset"
Option = bool | int | float | str


@dataclass(frozen=True, slots=True)
class EnginePreset:
    """Defaults that are another engine's, and what its sizes count otherwise than ours."""

    name: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    num_null_blocks: int = 0
    """Of the blocks that it counts: so many hold no token."""

    def usable_blocks(self, num_blocks: int) -> int:
        """Give the blocks that hold tokens, of those that the engine tells; ConfigError if none."""
        if self.num_null_blocks and num_blocks <= self.num_null_blocks:
            raise ConfigError(
                f'num_blocks is {num_blocks:,}, of which preset "{self.name}" leaves '
                f"{self.num_null_blocks:,} empty: give at least {self.num_null_blocks + 1:,}"
            )
        return num_blocks - self.num_null_blocks


NO_PRESET = EnginePreset()

VLLM_V1 = EnginePreset(
    "vllm-v1",
    {
        # vllm/v1/core/sched/scheduler.py, as of 017e9f4448 (2026-08):
        # what runs goes first, in order of admission; waiting requests in order of arrival, up to
        # the first that does not fit; nobody is admitted in a step that preempted.
        "batching": "continuous",
        "policy": "fcfs",
        "backfill": "none",
        "enable_chunked_prefill": True,
        # scheduler_reserve_full_isl: the whole sequence must fit before its first chunk.
        "admission": "prompt",
        "watermark": 0.0,
        # `running.pop()`: under fcfs the last admitted is the latest arrival; it loses all blocks,
        # waits before everybody else and is computed again.
        "preemption_trigger": "shortage",
        "preemption_victim": "newest",
        "preemption_mode": "recompute",
        "preemption_extent": "whole",
        "max_preemptions": 0,
        # On since V1.
        "enable_prefix_caching": True,
    },
    # BlockPool.null_block: "Number of GPU blocks" of the log counts it.
    num_null_blocks=1,
)

LIGHTLLM = EnginePreset(
    "lightllm",
    {
        # slora/server/router/req_queue.py of VTC-artifact at 192c2e20, a fork of LightLLM:
        # in order of arrival; the first that does not fit ends the scan.
        "batching": "continuous",
        "policy": "fcfs",
        "backfill": "none",
        # _can_add_new_req: who runs and who comes must fit when each has grown to its max_tokens.
        "admission": "peak",
        "watermark": 0.0,
        # The pool is counted in tokens.
        "block_size": 1,
        # A batch of new prompts is computed as a whole.
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
    },
    # The peak must stay below the pool.
    num_null_blocks=1,
)

PRESETS: dict[str, EnginePreset] = {preset.name: preset for preset in (VLLM_V1, LIGHTLLM)}


def read_preset(section: Fields) -> EnginePreset:
    """Give the preset that [engine] names, which sets nothing where it names none."""
    if KEY not in section:
        return NO_PRESET
    return PRESETS[section.one_of(KEY, "", tuple(PRESETS))]
