"""Devices known by name, or described by a user."""

import pytest

from everbatch.base.errors import ConfigError
from everbatch.costs.device import DEVICE_SIZES, find_device, known_devices


def test_every_known_device_is_whole_and_has_its_source():
    devices = known_devices()

    lacking = [
        (device.name, size)
        for device in devices
        for size in (*DEVICE_SIZES, "source")
        if not getattr(device, size)
    ]
    assert len(devices) > 10
    assert lacking == []


@pytest.mark.parametrize("device", known_devices(), ids=lambda device: device.name)
def test_no_rate_is_a_sparse_one(device):
    # Sparsity doubles a rate; fp8 doubles the rate of bf16. A sparse figure of one of both would
    # make them equal, or four times as large.
    if device.flops_fp8 is not None:
        assert 1.9 < device.flops_fp8 / device.flops < 2.1


def test_the_h100_has_its_data_sheet_s_rates():
    device = find_device("h100-sxm")

    assert (device.flops, device.memory_bandwidth) == (989e12, 3.35e12)


def test_a_device_of_one_s_own_is_a_toml_file(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "Mine"\nflops = 1e12\nmemory_bandwidth = 3.2e10')

    device = find_device("mine.toml", tmp_path)

    assert (device.name, device.flops, device.memory) == ("Mine", 1e12, None)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("h100", None, 'there is no device "h100" (did you mean "h100-'),
        ("config.json", "{}", 'no device "config.json"'),
        ("bad.toml", "flops = 0", "flops is 0, it must be a number above 0"),
        ("bad.toml", f"flops = 1{'0' * 400}", "flops is an integer of 1,329 bits, it must be"),
        ("bad.toml", "flop = 1", 'no key "flop" (did you mean "flops"?)'),
        ("gone.toml", None, "cannot read the device"),
        ("bad.toml", "x" * (1 << 20), "has more than 1,048,576 bytes"),
    ],
)
def test_a_device_that_is_none_says_what_there_is(name, text, told, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text + "\n")

    with pytest.raises(ConfigError) as error:
        find_device(name, tmp_path)

    assert told in str(error.value)
