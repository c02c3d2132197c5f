"""Hypothesis strategies that tests share: configurations and clients for tiny worlds.

Profiles: `quick` draws the same examples in every run; the long versions are marked `full` and take
their own settings.
"""

from builders import Client
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig, TenantConfig

_RELAXED = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
QUICK = settings(derandomize=True, max_examples=200, stateful_step_count=40, **_RELAXED)
FULL = settings(max_examples=1_500, stateful_step_count=80, print_blob=True, **_RELAXED)

MAX_PROMPT_TOKENS = 14
MAX_OUTPUT_TOKENS = 9


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    """Tiny pools and budgets, all options that exist. The plainest values come first."""
    budget = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 64]))
    policy = draw(st.sampled_from(["fcfs", "priority", "srpt", "vtc"]))
    return SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=budget,
        num_blocks=draw(st.integers(1, 10)),
        block_size=draw(st.integers(1, 4)),
        max_model_len=draw(st.sampled_from([0, 0, 0, 12, 20])),
        enable_chunked_prefill=draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3])),
        min_prefill_tokens=draw(st.sampled_from([0, 0, 1, budget])),
        prefill_aging_steps=draw(st.sampled_from([0, 0, 1, 4])),
        batching=draw(st.sampled_from(["continuous"] * 4 + ["static"])),
        policy=policy,
        aging_steps=draw(st.sampled_from([0, 1, 4])) if policy == "priority" else 0,
        backfill=draw(st.sampled_from(["none", "safe", "greedy"])),
        admission=draw(st.sampled_from(["prompt", "now", "peak", "reserve"])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.2, 0.5])),
        preemption_trigger=draw(st.sampled_from(["shortage", "stall"])),
        preemption_mode=draw(st.sampled_from(["recompute", "swap", "auto"])),
        preemption_extent=draw(st.sampled_from(["whole", "tail"])),
        preemption_victim=draw(st.sampled_from(["newest", "priority", "least_lost", "largest"])),
        num_host_blocks=draw(st.sampled_from([0, 2, 30])),
        max_preemptions=draw(st.sampled_from([0, 0, 1, 2])),
        max_queue_requests=draw(st.sampled_from([0, 0, 2])),
        max_queue_tokens=draw(st.sampled_from([0, 0, 20])),
        tenants={"a": TenantConfig(2.0), "b": TenantConfig(0.5, 4)},
        preemption_costs=PreemptionCosts(draw(st.integers(1, 8)), 2),
    )


@st.composite
def clients(draw: st.DrawFn, id: str) -> Client:
    """A client whose prompt shares a prefix with many others."""
    prompt_tokens = draw(st.integers(1, MAX_PROMPT_TOKENS))
    common = draw(st.integers(0, prompt_tokens))
    family = draw(st.integers(0, 1))
    private = 1 + draw(st.integers(0, 2))
    prompt = [1_000 * family + position for position in range(common)]
    prompt += [10_000 * private + position for position in range(common, prompt_tokens)]
    output_tokens = draw(st.integers(1, MAX_OUTPUT_TOKENS))
    max_tokens = draw(st.sampled_from([None, None, output_tokens + 3, max(1, output_tokens - 2)]))
    salt = draw(st.sampled_from(["", "", "", "salt"]))
    return Client(
        id,
        prompt,
        output_tokens,
        max_tokens=max_tokens,
        cache_salt=salt,
        priority=draw(st.integers(0, 2)),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        deadline=draw(st.sampled_from([None, None, None, 0, 5])),
    )
