"""The nominal and the full model of step time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbatch.base.errors import ConfigError
from everbatch.costs.device import Device, find_device
from everbatch.costs.model import Model, find_model
from everbatch.costs.nominal import NominalStepTime
from everbatch.costs.roofline import RooflineOptions, RooflineStepTime
from everbatch.costs.work import StepWork

# Round sizes: a byte of memory takes 1 ns, 1,000 FLOPs do, a byte of a link 10 ns.
DEVICE = Device("d", "", 1e12, None, 1e9, 1e12, 1e8, 1e8)
MODEL = Model("m", "", 1000.0, 2.0, 4.0, 2.0, 5.0, 20.0, 2.0, head_params=100.0)
IDEAL = RooflineOptions(
    compute_efficiency=1,
    memory_efficiency=1,
    link_efficiency=1,
    host_s_per_step=0,
    host_s_per_sequence=0,
    all_reduce_latency_s=0,
)
KV_BYTES = 2 * 2 * 2 * 5 * 2


def works() -> st.SearchStrategy[StepWork]:
    @st.composite
    def draw_work(draw: st.DrawFn) -> StepWork:
        count = st.integers(0, 300)
        work = StepWork(draw(count), swapped_blocks=draw(count), copied_blocks=draw(count))
        work.decode_context = sum(draw(st.lists(st.integers(1, 9000), max_size=4)))
        for chunk in draw(st.lists(st.integers(1, 9000), max_size=3)):
            work.add_chunk(draw(st.integers(0, 9000)), chunk)
        work.num_logits = work.num_decodes + draw(st.integers(0, work.num_chunks))
        return work

    return draw_work()


def nanoseconds(options: RooflineOptions, work: StepWork, model: Model = MODEL) -> dict[str, float]:
    terms = RooflineStepTime(DEVICE, model, options).terms(work)
    return {term.name: term.seconds * 1e9 for term in terms if term.seconds}


def decodes(count: int, context: int = 0) -> StepWork:
    return StepWork(count, decode_context=context, num_logits=count)


def test_few_tokens_are_memory_limited_and_many_compute_limited():
    step_time = NominalStepTime(find_device("h100-sxm"), find_model("nominal-8b"))
    mixed = decodes(3)
    mixed.add_chunk(0, 512)

    assert step_time.duration_ns(decodes(3)) == round(16e9 / 3.35e12 * 1e9) == 4_776_119
    assert step_time.duration_ns(mixed) == round(515 * 16e9 / 989e12 * 1e9) == 8_331_648
    assert [step_time.terms(work)[0].bound for work in (decodes(3), mixed)] == ["memory", "compute"]


def test_the_nominal_model_leaves_out_all_but_weights():
    step_time = NominalStepTime(DEVICE, MODEL)
    work = StepWork(3, 10**6, swapped_blocks=99, copied_blocks=99)

    assert step_time.duration_ns(work) == step_time.duration_ns(decodes(3)) == 2000


def test_a_step_takes_a_nanosecond_at_least():
    device = DEVICE.with_sizes({"flops": 1e24, "memory_bandwidth": 1e24})

    assert NominalStepTime(device, MODEL).duration_ns(decodes(1)) == 1
    assert RooflineStepTime(device, MODEL, IDEAL).duration_ns(decodes(1)) >= 1


def test_a_decode_reads_its_context_and_writes_a_token():
    assert nanoseconds(IDEAL, decodes(3, 70)) == pytest.approx(
        {
            "weights": 2 * 900,
            "attention, decodes": KV_BYTES * 70,
            "KV writes": KV_BYTES * 3,
            "logits": 2 * 100,
        }
    )


def test_a_chunk_reads_each_key_once_and_multiplies_all_pairs():
    work = StepWork()
    work.add_chunk(10, 4)
    slow = DEVICE.with_sizes({"flops": 1e9})
    terms = {term.name: term for term in RooflineStepTime(slow, MODEL, IDEAL).terms(work)}

    attention = terms["attention, prompts"]
    assert attention.bytes == KV_BYTES * 14
    # 2 FLOPs with keys and 2 with values, 2 layers, 4 heads of 5; 11 + 12 + 13 + 14 pairs.
    assert attention.flops == 4 * 2 * 4 * 5 * 50
    assert attention.bound == "compute"
    assert terms["logits"].seconds == 0


def test_embeddings_are_looked_up_and_not_read():
    model = find_model("llama-3.1-8b")
    (weights,) = [
        term
        for term in RooflineStepTime(find_device("h100-sxm"), model).terms(decodes(1))
        if term.name == "weights"
    ]

    assert weights.bytes == 2 * (8_030_261_248 - 2 * 128_256 * 4096)


def test_blocks_are_copied_in_memory_and_swapped_over_the_link_to_the_host():
    work = decodes(1)
    work.copied_blocks, work.swapped_blocks = 3, 2
    told = nanoseconds(IDEAL, work)

    assert told["block copies"] == pytest.approx(2 * 3 * 16 * KV_BYTES)
    assert told["swapping"] == pytest.approx(10 * 2 * 16 * KV_BYTES)


def test_devices_share_the_work_and_pay_for_two_all_reduces_a_layer():
    options = RooflineOptions(
        4, 16, 1, 1, 1, host_s_per_step=0, host_s_per_sequence=0, all_reduce_latency_s=1e-6
    )
    told = nanoseconds(options, decodes(6, 70))

    assert told["weights"] == pytest.approx(2 * 900 / 4)
    # Two KV heads on four devices: each is kept twice.
    assert told["attention, decodes"] == pytest.approx(KV_BYTES / 2 * 70)
    # 2 layers, 2 each: 1 us, and 2 · 3/4 of 6 states of 20 numbers of 2 bytes at 10 ns.
    assert told["all-reduce"] == pytest.approx(4 * (1000 + 2 * 3 / 4 * 6 * 20 * 2 * 10))


def test_the_host_takes_its_time_and_efficiencies_stretch_the_rest():
    options = RooflineOptions(memory_efficiency=0.5, host_s_per_step=1e-6, host_s_per_sequence=1e-7)
    told = nanoseconds(options, decodes(3))

    assert told["host"] == pytest.approx(1300)
    assert told["weights"] == pytest.approx(2 * 2 * 900)


def test_heads_are_as_wide_as_the_hidden_state_unless_told():
    pairs = [
        RooflineStepTime(DEVICE, model, IDEAL).terms(decodes(1, 1))[1].flops
        for model in (MODEL.with_sizes({"num_heads": 8}), MODEL, _without_heads())
    ]

    assert pairs == [4 * 2 * 8 * 5, 4 * 2 * 4 * 5, 4 * 2 * 4 * 5]


def _without_heads() -> Model:
    sizes = ("num_params", "num_layers", "num_kv_heads", "head_dim", "hidden_size")
    given = {size: getattr(MODEL, size) for size in (*sizes, "bytes_per_value")}
    return Model("m", "", **given)


@given(works(), st.sampled_from([1, 2, 8]))
def test_the_terms_add_up_to_the_duration(work, tp):
    step_time = RooflineStepTime(
        find_device("a100-sxm"), find_model("qwen3-8b"), RooflineOptions(tp)
    )
    total_s = sum(term.seconds for term in step_time.terms(work))

    assert step_time.duration_ns(work) == pytest.approx(1e9 * total_s, rel=1e-9, abs=1)


@pytest.mark.parametrize(
    ("device", "model", "told"),
    [
        (Device(), MODEL, "the nominal model needs [hardware] flops, memory_bandwidth: give it"),
        (DEVICE, Model("m"), 'needs [model] num_params, bytes_per_value ("m" does not tell)'),
    ],
)
def test_what_is_lacking_is_named(device, model, told):
    with pytest.raises(ConfigError) as error:
        NominalStepTime(device, model)

    assert told in str(error.value)


def test_links_are_needed_only_where_they_are_used():
    device = Device("d", flops=1e12, memory_bandwidth=1e9)
    step_time = RooflineStepTime(device, MODEL)

    assert step_time.duration_ns(decodes(1)) > 0
    with pytest.raises(ConfigError, match=r"\[hardware\] pcie_bandwidth"):
        step_time.duration_ns(StepWork(1, swapped_blocks=1))
    with pytest.raises(ConfigError, match=r"\[hardware\] link_bandwidth"):
        RooflineStepTime(device, MODEL, RooflineOptions(tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tensor_parallel_size": 0}, r"tensor_parallel_size must lie in \[1, 1,024\], got 0"),
        ({"tensor_parallel_size": 1025}, r"got 1,025"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"memory_efficiency": 9e-4}, r"memory_efficiency must lie in \[0.001, 1\], got 0.0009"),
        ({"compute_efficiency": 1.01}, "compute_efficiency must lie in"),
        ({"link_efficiency": float("nan")}, "link_efficiency must lie in"),
        ({"host_s_per_step": -1}, r"host_s_per_step must lie in \[0, 1e\+06\] seconds, got -1"),
        ({"all_reduce_latency_s": float("inf")}, "all_reduce_latency_s must lie in"),
    ],
)
def test_an_impossible_option_is_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        RooflineOptions(**options)
