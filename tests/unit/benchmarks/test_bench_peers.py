"""The comparison with peers: what is promised, what is run, and what is told where a peer lacks."""

from pathlib import Path

import bench_peers
import pytest
from bench_peers import COMPARISONS, missing, parse, plan, run

PROMISES = {
    ("smollm2-openvino", "decode_tokens_per_s_batch_8"): 1.4,
    ("smollm2-openvino", "decode_tokens_per_s_batch_32"): 1.4,
    ("smollm2-openvino", "decode_tokens_per_s_batch_64"): 1.4,
    ("smollm2-openvino", "prefill_tokens_per_s_batch_32"): 0.95,
    ("smollm2-llama-cpp", "decode_tokens_per_s_batch_1"): 0.93,
    ("smollm2-1000-openvino", "decode_tokens_per_s_batch_16"): 1.3,
    ("smollm2-1000-openvino", "decode_tokens_per_s_batch_32"): 1.3,
    ("llama-1b-openvino", "decode_tokens_per_s_batch_1"): 1.4,
    ("llama-1b-openvino", "decode_tokens_per_s_batch_8"): 1.4,
}
FLAGS = (
    "--model",
    "--openvino-python",
    "--openvino-model",
    "--llama-bench",
    "--llama-model",
    "--llama-1b",
    "--openvino-llama-1b",
)


def all_there(tmp_path: Path) -> list[str]:
    """Give the flags that name a file each."""
    arguments = []
    for flag in FLAGS:
        path = tmp_path / flag.strip("-")
        path.touch()
        arguments += [flag, str(path)]
    return arguments


def test_each_promise_is_of_a_figure_that_is_measured(tmp_path):
    options = parse(all_there(tmp_path))
    plans = {name: plan(name, one, options) for name, one in COMPARISONS.items()}

    assert {
        (name, figure): least
        for name, one in plans.items()
        for figure, least in one.at_least.items()
    } == PROMISES
    assert all(set(one.at_least) <= set(one.figures) for one in plans.values())


def test_both_sides_get_the_same_sizes(tmp_path):
    options = parse([*all_there(tmp_path), "--threads", "3"])
    for name, comparison in COMPARISONS.items():
        made = plan(name, comparison, options)
        sizes = ["--batches", *map(str, comparison.batches)]
        sizes += ["--prompt", str(comparison.prompt), "--threads", "3"]

        assert list(made.a.argv[-len(sizes) :]) == sizes
        assert list(made.b.argv[-len(sizes) :]) == sizes
        assert made.b.argv[-len(sizes) - 1] == str(getattr(options, comparison.peer_model))
        assert made.a.argv[-len(sizes) - 1] == str(getattr(options, comparison.model))


def test_what_is_missing_is_named(tmp_path):
    llama = COMPARISONS["smollm2-llama-cpp"]

    assert missing(llama, parse(all_there(tmp_path))) == []
    assert missing(llama, parse(["--model", "/nowhere", "--llama-bench", str(tmp_path)])) == [
        "--model /nowhere does not exist",
        "--llama-model is not given",
    ]


def test_a_comparison_without_its_peer_is_skipped_and_the_others_run(tmp_path, monkeypatch, capsys):
    arguments = all_there(tmp_path)
    (tmp_path / "openvino-python").unlink()
    ran = []
    monkeypatch.setattr(bench_peers, "exit_status", lambda made: ran.append(made.name) or 1)

    status = run(parse(arguments))

    assert status == 1
    assert ran == ["smollm2-llama-cpp"]
    told = capsys.readouterr().out
    assert told.count("skipped, --openvino-python") == 3
    assert "smollm2-llama-cpp: missed" in told


def test_nothing_compared_is_no_success(capsys):
    assert run(parse(["--model", "/nowhere"])) == 2
    assert "nothing was compared" in capsys.readouterr().err


def test_an_unknown_comparison_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["smollm3"])
    assert "no comparison 'smollm3'; there are smollm2-openvino" in capsys.readouterr().err
