"""[workload]: every key, its range, which go together; equal seeds give equal requests."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from trace_rows import FILES, drained, lengths, pieces, seconds

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.workload.requests import MAX_REQUESTS, RequestSpec
from everbatch.workload.workload_section import WORKLOAD_KEYS, Workload, read_workload

SIZES = {"prompt": 100, "output": 10}
POISSON = {"arrivals": "poisson", "rate": 5, "num_requests": 20, **SIZES}


def read(seed: int = 0, **table) -> Workload:
    return read_workload(Fields(table, "[workload]", WORKLOAD_KEYS), FILES, seed)


def made(seed: int = 0, **table) -> list[RequestSpec]:
    return drained(read(seed, **table).source())


def test_a_trace_is_found_in_the_scenario_s_folder_and_named():
    workload = read(trace="azure.csv")

    assert workload.title == "azure.csv, format azure (detected)"
    assert workload.source().notes() == ["read azure.csv, format azure (detected)"]
    assert len(drained(workload.source())) == 24


def test_each_run_has_a_source_of_its_own():
    workload = read(trace="azure.csv", limit=3)
    first = drained(workload.source())

    assert first == drained(workload.source())


def test_a_trace_s_keys_are_seconds_and_shares():
    specs = made(trace="azure.csv", format="azure", start=5, window=4.5, speed=2.0)

    assert [spec.id for spec in specs] == [str(row) for row in range(4, 12)]
    assert seconds(specs)[0] == pytest.approx((52.5732450 - 46.6805900 - 5) / 2)
    assert len(made(trace="azure.csv", sample=0.5)) < 24
    assert len(made(trace="azure.csv", limit=5)) == 5


def test_prefixes_of_a_trace_can_be_left_out():
    assert pieces(made(trace="mooncake.jsonl", limit=1, prefixes=False)[0]) == [(None, 6758)]
    assert len(pieces(made(trace="mooncake.jsonl", limit=1, prefixes=True)[0])) == 14


def test_clients_may_have_limits_and_patience():
    keys = {"max_tokens": 7, "patience": 2.5, "deadline": 1}
    ends = [
        (spec.max_tokens, spec.abort_at - spec.arrival, spec.deadline)
        for table in ({"trace": "azure.csv"}, POISSON)
        for spec in made(**table, **keys)
    ]

    assert set(ends) == {(7, 2_500_000_000, 1_000_000_000)}


@pytest.mark.parametrize("table", [{"trace": "azure.csv"}, {**POISSON, "num_requests": 24}])
def test_only_a_share_of_clients_may_be_impatient(table):
    keys = {"patience": 1, "impatient": 0.5}
    leaving = [spec.id for spec in made(**table, **keys) if spec.abort_at is not None]

    assert 6 < len(leaving) < 18
    assert leaving == [spec.id for spec in made(**table, **keys) if spec.abort_at is not None]
    assert not any(spec.abort_at for spec in made(**table, patience=1, impatient=0))


@pytest.mark.parametrize("zeros", [None, "drop", "one"])
def test_rows_without_tokens_are_left_out_unless_asked_for(tmp_path, zeros):
    path = tmp_path / "trace.jsonl"
    row = {"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 0}
    path.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'output_tokens': 4})}\n")
    keys = {} if zeros is None else {"zeros": zeros}

    found = lengths(made(trace=str(path), **keys))

    assert found == ([(3, 1), (3, 4)] if zeros == "one" else [(3, 4)])


def test_lengths_without_arrivals_are_no_trace_to_run():
    with pytest.raises(ConfigError, match="lengths only, no arrivals: give arrivals"):
        read(trace="vidur.csv")


def test_uniform_arrivals_do_not_drift():
    specs = made(arrivals="uniform", rate=3, num_requests=3001, **SIZES)

    assert [spec.arrival for spec in specs[:3]] == [0, 333_333_333, 666_666_666]
    assert specs[3000].arrival == 1_000_000_000_000


def test_bursts_come_together_at_the_rate_in_all():
    specs = made(arrivals="burst", rate=10, burst_size=5, num_requests=12, **SIZES)

    assert seconds(specs) == [0] * 5 + [0.5] * 5 + [1.0] * 2


def test_one_burst_brings_all_at_once():
    assert seconds(made(arrivals="burst", num_requests=4, **SIZES)) == [0] * 4


@pytest.mark.parametrize(
    ("keys", "cv"), [({"arrivals": "poisson"}, 1), ({"arrivals": "gamma", "cv": 3}, 3)]
)
def test_random_arrivals_have_the_rate_and_variation_asked_for(keys, cv):
    specs = made(**keys, rate=50, num_requests=20_000, **SIZES)
    gaps = [b.arrival - a.arrival for a, b in pairwise(specs)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert specs[0].arrival == 0
    assert mean == pytest.approx(1e9 / 50, rel=0.06)
    assert variance**0.5 / mean == pytest.approx(cv, rel=0.06)


def test_gamma_without_variation_is_uniform():
    assert seconds(made(arrivals="gamma", cv=0, rate=2, num_requests=3, **SIZES)) == [0, 0.5, 1]


def test_a_duration_ends_arrivals_before_it():
    assert seconds(made(arrivals="uniform", rate=2, duration=1.5, **SIZES)) == [0, 0.5, 1.0]
    assert len(made(arrivals="uniform", rate=2, duration=1.5, num_requests=2, **SIZES)) == 2


def test_the_number_of_requests_is_known_where_it_is_asked_for():
    assert read(**POISSON).source().num_requests == 20
    assert read(**{**POISSON, "duration": 3}).source().num_requests is None


def test_a_prefix_is_shared_and_the_rest_is_private():
    specs = made(**{**POISSON, "num_requests": 200}, prefix_tokens=60, num_prefixes=3)

    assert {tuple(pieces(spec)) for spec in specs} == {
        ((f"prefix {which}", 60), (None, 40)) for which in range(3)
    }
    assert pieces(made(**POISSON, prefix_tokens=100)[0]) == [("prefix 0", 100)]
    assert pieces(made(**POISSON, prefix_tokens=500)[0]) == [("prefix 0", 100)]


def test_another_process_makes_the_same_requests():
    table = {
        **POISSON,
        "arrivals": "gamma",
        "cv": 2,
        "prompt": {"lengths": "lognormal", "mean": 300, "cv": 1},
        "output": {"lengths": "empirical", "file": "vidur.csv"},
    }
    code = (
        "import json, sys; from pathlib import Path\n"
        "from everbatch.base.fields import Fields\n"
        "from everbatch.workload.workload_section import WORKLOAD_KEYS, read_workload\n"
        f"table = Fields(json.loads({json.dumps(table)!r}), '[workload]', WORKLOAD_KEYS)\n"
        f"source = read_workload(table, Path({str(FILES)!r}), 3).source()\n"
        "while source.peek() is not None: print(source.pop())"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert ran[0] == ran[1] == "".join(f"{spec}\n" for spec in made(3, **table))
    assert made(4, **table) != made(3, **table)


def test_a_scenario_without_a_workload_loads_no_readers_of_traces():
    code = (
        "import sys; from everbatch.workload.builtin_scenarios import find_scenario\n"
        "find_scenario('lesson-continuous')\n"
        "print([name for name in sys.modules if name.startswith('everbatch.workload.traces')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"


LOGNORMAL = {"lengths": "lognormal", "mean": 9, "cv": 1}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, "[workload] has neither trace nor arrivals: give one of them"),
        ({"trace": "azure.csv", "arrivals": "burst"}, "both trace and arrivals"),
        ({"trace": "azure.csv", "rate": 1}, "has rate, which a trace does not have"),
        ({"trace": ""}, 'trace is "", it must be a string that is not empty'),
        ({"trace": "none.csv"}, "none.csv does not exist"),
        ({"trace": "azure.csv", "format": "azur"}, 'format is "azur", it must be one of azure'),
        ({"trace": "azure.csv", "sample": 0}, "sample is 0, it must be a number from 1e-06 to 1"),
        ({"trace": "azure.csv", "sample": 1.5}, "sample is 1.5, it must be a number from 1e-06"),
        ({"trace": "azure.csv", "speed": 0}, "speed is 0, it must be a number from 1e-06"),
        ({"trace": "azure.csv", "limit": 0}, "limit is 0, it must be an integer from 1"),
        ({"trace": "azure.csv", "speed": -2}, "speed is -2, it must be a number from 1e-06 to"),
        ({"trace": "azure.csv", "start": -1}, "start is -1, it must be a number from 0 to"),
        ({"trace": "azure.csv", "window": 0}, "window is 0, it must be a number above 0, up to"),
        ({"trace": "azure.csv", "window": -1}, "window is -1, it must be a number above 0, up to"),
        ({"trace": "azure.csv", "zeros": "two"}, 'zeros is "two", it must be one of drop, one'),
        ({"trace": "azure.csv", "prefixes": 1}, "prefixes is 1, it must be true or false"),
        ({"trace": "azure.csv", "patience": -2}, "patience is -2, it must be a number from 0 to"),
        ({"trace": "azure.csv", "max_tokens": 0}, "max_tokens is 0, it must be an integer from 1"),
        ({"trace": "azure.csv", "impatient": 0.5}, "lacks patience: how many seconds impatient"),
        ({**POISSON, "patience": 1, "impatient": 2}, "impatient is 2, it must be a number from 0"),
        ({**POISSON, "backoff": 1}, "lacks retries: how often clients try again"),
        ({**POISSON, "retries": 21}, "retries is 21, it must be an integer from 0 to 20"),
        ({**POISSON, "retries": 1, "backoff": 0}, "backoff is 0, it must be a number from 0.001"),
        ({"arrivals": "poison"}, '(did you mean "poisson"?)'),
        ({**POISSON, "cv": 1}, "has cv, which arrivals poisson does not have: its keys are"),
        ({**POISSON, "rate": 0}, "rate is 0, it must be a number from 1e-06 to 1,000,000,000"),
        ({"arrivals": "poisson", **SIZES, "num_requests": 1}, "lacks rate: requests a second"),
        ({"arrivals": "poisson", "rate": 1, **SIZES}, "lacks num_requests or duration"),
        ({**POISSON, "num_requests": 0}, "num_requests is 0, it must be an integer from 1"),
        (
            {"arrivals": "poisson", "rate": 1e6, "duration": 10, **SIZES},
            f"rate × duration is about 10,000,000 requests, at most {MAX_REQUESTS:,} are made",
        ),
        ({**POISSON, "arrivals": "gamma"}, "lacks cv: the coefficient of variation"),
        ({**POISSON, "arrivals": "gamma", "cv": 1e-9}, "cv is 1e-09, it must be a number from"),
        ({**POISSON, "arrivals": "burst"}, "lacks burst_size: how many come at once"),
        ({"arrivals": "burst", "duration": 1, **SIZES}, "lacks num_requests: how many come at"),
        ({"arrivals": "closed", "num_requests": 1, **SIZES}, "lacks users: so many send"),
        ({**POISSON, "num_prefixes": 2}, "has num_prefixes without prefix_tokens"),
        ({**POISSON, "prompt": 0}, "prompt is 0, it must be an integer from 1"),
        ({**POISSON, "prompt": 1.5}, "[workload] prompt must be a table, not 1.5"),
        ({**POISSON, "prompt": {"tokens": 5}}, "prompt lacks lengths: one of fixed, uniform"),
        ({**POISSON, "prompt": {"lengths": "fixed"}}, "prompt lacks tokens"),
        ({**POISSON, "prompt": {"lengths": "fixed", "tokens": 5, "min": 1}}, "prompt has min,"),
        ({**POISSON, "output": {"lengths": "uniform", "min": 5}}, "output lacks max"),
        ({**POISSON, "output": {"lengths": "uniform", "min": 5, "max": 4}}, "max is 4, it must be"),
        ({**POISSON, "output": {**LOGNORMAL, "mean": 0.5}}, "mean is 0.5, it must be"),
        ({**POISSON, "output": {**LOGNORMAL, "cv": 101}}, "cv is 101, it must be"),
        ({**POISSON, "output": {"lengths": "empirical"}}, "output lacks file: a trace whose"),
    ],
)
def test_a_wrong_key_is_named_with_its_value_and_what_is_allowed(table, told):
    with pytest.raises(ConfigError) as error:
        read(**table)

    assert told in str(error.value)


def test_a_window_of_less_than_a_nanosecond_has_one():
    specs = made(trace="azure.csv", format="azure", window=1e-12)

    assert [spec.arrival for spec in specs] == [0]


def test_what_is_not_drawn_of_a_file_is_said(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 0}
    path.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'output_tokens': 4})}\n")
    part = {"lengths": "empirical", "file": str(path)}
    notes = [
        "read lengths of rows.jsonl, format jsonl (detected)",
        "rows.jsonl: 1 row without prompt or output is not drawn",
    ]

    for arrivals in ({"arrivals": "uniform", "rate": 1}, {"arrivals": "closed", "users": 1}):
        workload = read(**arrivals, num_requests=1, prompt=part, output=part)
        assert workload.source().notes() == notes


def test_an_unknown_key_is_refused():
    with pytest.raises(ConfigError, match=r'no key "arrival" \(did you mean "arrivals"\?\)'):
        read(arrival="poisson")
