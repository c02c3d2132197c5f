"""Numbers of which there must be one are refused where they are read, not where they divide."""

import bench_floor
import bench_peers
import harness
import pytest
import steps_workload

PLAN = ["--name", "x", "--a", "true", "--b", "true", "--figure", "x"]


def floor_main(arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench_floor.py", *arguments])
    bench_floor.main()


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
@pytest.mark.parametrize(
    ("read", "flag"),
    [
        (lambda given, _: bench_peers.parse(given), "--rounds"),
        (lambda given, _: bench_peers.parse(given), "--max-rounds"),
        (lambda given, _: bench_peers.parse(given), "--threads"),
        (lambda given, _: harness.main([*PLAN, *given]), "--rounds"),
        (lambda given, _: steps_workload.arguments("x").parse_args(["m", *given]), "--batches"),
        (lambda given, _: steps_workload.arguments("x").parse_args(["m", *given]), "--prompt"),
        (lambda given, _: steps_workload.arguments("x").parse_args(["m", *given]), "--threads"),
        (lambda given, monkeypatch: floor_main(["m", *given], monkeypatch), "--rounds"),
    ],
)
def test_a_number_below_one_is_refused_in_words(read, flag, number, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        read([f"{flag}={number}"], monkeypatch)

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"argument {flag}: {number!r} must be a whole number of at least 1" in told
