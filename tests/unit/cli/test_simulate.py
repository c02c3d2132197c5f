"""`everbatch simulate`: what it prints and writes, and that errors write nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import everbatch, read_lines, scenario_text

from everbatch import __version__
from everbatch.sim import run as sim_run
from everbatch.sim.progress import NoProgress
from everbatch.workload.builtin_scenarios import builtin_names

TWO = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 3},
    {"id": "b", "arrival": 2, "prompt_tokens": 300, "output_tokens": 3},
]


@pytest.fixture
def scenario(tmp_path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(scenario_text(TWO), encoding="utf-8")
    return path


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_summary_has_every_documented_field(scenario):
    summary = json.loads(everbatch("simulate", scenario, "--json").out)

    assert summary["everbatch"] == __version__
    assert list(summary["requests"]["a"]) == [
        "state",
        "finish_reason",
        "arrival",
        "first_step",
        "first_token_step",
        "finished_step",
        "queue_wait",
        "preempted_wait",
        "output_tokens",
        "cached_tokens",
        "num_preemptions",
        "recomputed_tokens",
        "rejected",
    ]
    assert {
        "everbatch",
        "clock",
        "steps",
        "duration_s",
        "slot_iterations",
        "useful_tokens",
        "slot_occupancy",
        "masked_slot_iterations",
        "idle_slot_iterations",
        "scheduled_tokens",
        "recomputed_tokens",
        "recomputed_token_ratio",
        "num_preemptions",
        "peak_blocks",
        "prefix_cache_hit_tokens",
        "digest",
        "horizons",
        "ttft",
        "itl",
        "tpot",
        "e2e",
        "requests",
    } <= set(summary)
    assert set(summary["ttft"]) == {"mean", "p50", "p90", "p99"}


def test_every_field_is_in_the_document(scenario, tmp_path):
    document = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text(encoding="utf-8")
    summary = json.loads(
        everbatch("simulate", scenario, "--json", "--steps", tmp_path / "steps").out
    )
    names = [*summary, *summary["requests"]["a"], *read_lines(tmp_path / "steps")[0]]

    assert [name for name in names if f"`{name}`" not in document] == []


def test_a_refusal_is_no_failure(scenario):
    answer = everbatch("simulate", scenario, "--json")

    assert answer.status == 0
    assert json.loads(answer.out)["requests"]["b"]["rejected"]


def test_requests_none_leaves_the_part_out(scenario):
    summary = json.loads(everbatch("simulate", scenario, "--json", "--requests", "none").out)

    assert "requests" not in summary
    assert summary["steps"] == 3


def test_without_requests_the_first_refusal_is_told(scenario):
    answer = everbatch("simulate", scenario, "--requests", "none")

    assert answer.out.count("b was refused: prompt has 300 tokens") == 1


def test_requests_go_to_their_file(scenario, tmp_path):
    path = tmp_path / "requests.json"
    whole = json.loads(everbatch("simulate", scenario, "--json").out)

    summary = json.loads(everbatch("simulate", scenario, "--json", "--requests", path).out)

    assert json.loads(path.read_text()) == whole.pop("requests")
    assert summary == whole


def test_the_digest_covers_the_body_of_the_event_log(scenario, tmp_path):
    from hashlib import sha256

    path = tmp_path / "events.jsonl"
    summary = json.loads(everbatch("simulate", scenario, "--json", "--events", path).out)
    header, body = path.read_bytes().split(b"\n", 1)

    assert summary["digest"] == sha256(body).hexdigest()
    assert json.loads(header)["clock"] == "steps"
    assert summary["digest"] == json.loads(everbatch("simulate", scenario, "--json").out)["digest"]


def test_the_log_is_a_delta_log(scenario, tmp_path):
    path = tmp_path / "events.jsonl"
    everbatch("simulate", "lesson-continuous", "--events", path)

    kinds = [event["event"] for event in read_lines(path)]
    assert kinds.count("step") + kinds.count("steps") < 80
    assert (
        sum(
            event.get("count", 1)
            for event in read_lines(path)
            if event["event"]
            in (
                "step",
                "steps",
            )
        )
        == 80
    )


def test_an_older_file_is_replaced_as_a_whole(scenario, tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("what was there\n" * 1000)

    everbatch("simulate", scenario, "--steps", path)

    assert [line["step"] for line in read_lines(path)] == [1, 2, 3]
    assert files_of(tmp_path) == ["mine.json", "steps.jsonl"]


def test_a_link_is_followed_not_replaced(scenario, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("")
    link.symlink_to(target)

    everbatch("simulate", scenario, "--steps", link)

    assert link.is_symlink()
    assert len(read_lines(target)) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.toml"],
        ["mine.json", "--steps", "no/such/folder/steps"],
        ["mine.json", "--steps", "same", "--events", "same"],
        ["mine.json", "--horizon", "0"],
        ["mine.json", "--seed", "-1"],
        ["mine.json", "--horizon", "soon"],
        ["broken.json"],
    ],
)
def test_an_error_has_status_2_one_line_and_writes_nothing(
    scenario, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text(scenario_text(TWO, max_num_seqs=0))
    Path("events").write_text("as before")
    before = files_of(tmp_path)

    answer = everbatch("simulate", *arguments, "--json", "--requests", "requests")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("everbatch: ")
    assert answer.err.count("\n") == 1
    assert files_of(tmp_path) == before
    assert Path("events").read_text() == "as before"


def test_no_progress_has_status_3_and_keeps_the_logs(scenario, tmp_path, monkeypatch):
    def stuck(self):
        raise NoProgress("no progress at boundary 0: none of 2 requests can run: a (kv_budget)")

    monkeypatch.setattr(sim_run.SimulatedRun, "run", stuck)
    events, requests = tmp_path / "events", tmp_path / "requests"
    answer = everbatch("simulate", scenario, "--json", "--events", events, "--requests", requests)

    assert (answer.status, answer.out) == (3, "")
    assert "none of 2 requests can run: a (kv_budget)" in answer.err
    assert files_of(tmp_path) == ["events", "mine.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_an_error_of_one_line(scenario):
    answer = everbatch("simulate", scenario, "--json", "--steps", "/dev/full")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "everbatch: cannot write /dev/full (No space left on device)\n"


def test_a_pipe_takes_what_is_written():
    reading, writing = os.pipe()
    path = f"/dev/fd/{writing}"
    answer = everbatch("simulate", "golden-stall", "--json", "--perfetto", path)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        trace = json.load(file)

    assert answer.status == 0
    assert trace["traceEvents"]


def test_horizon_and_seed_replace_the_scenario_s(scenario):
    summary = json.loads(everbatch("simulate", scenario, "--json", "--horizon", 2, "--seed", 7).out)

    assert (summary["steps"], summary["horizon"], summary["seed"]) == (2, 2, 7)


def test_without_a_scenario_the_built_in_ones_are_listed():
    answer = everbatch("simulate")

    assert answer.status == 0
    assert [name for name in builtin_names() if f"  {name} " not in answer.out] == []


def test_a_file_comes_before_a_built_in_scenario_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("golden-stall").write_text(scenario_text())

    assert json.loads(everbatch("simulate", "golden-stall", "--json").out)["steps"] == 3


def test_the_table_shows_figures_timeline_and_requests():
    answer = everbatch("simulate", "lesson-continuous")

    assert "300 of 320 slot iterations (93.75 %)" in answer.out
    assert "20 slot iterations (queue_empty 20)" in answer.out
    assert "slot 1 █1━━━━━━━━━━━━━━━━━━█5━" in answer.out
    assert "█ prefill" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert [line for line in answer.out.splitlines() if line != line.rstrip()] == []
    assert "\x1b" not in answer.out


def test_who_still_waits_has_a_wait_and_who_left_too():
    waiting = everbatch("simulate", "lesson-static").out
    left = everbatch("simulate", "overload-deadline").out

    assert re.search(r"^5 +WAITING +20 +60\+ +0 *$", waiting, re.MULTILINE)
    assert re.search(r"^r6 +deadline +12 +11 +23 +0 *$", left, re.MULTILINE)


def test_of_a_crowd_the_last_are_shown_too():
    out = everbatch("simulate", "starvation").out

    assert re.search(r"^prompt +stop +1 +99 +101 +101 ", out, re.MULTILINE)
    assert "(493 requests between the first and the last are left out: --json has all)" in out


def test_a_refusal_is_told_in_the_table_in_one_line(scenario):
    answer = everbatch("simulate", scenario)

    [refusal] = [line for line in answer.out.splitlines() if line.startswith("b was refused: ")]
    assert "shorten it or" in refusal
    assert "rejected 1" in answer.out


@pytest.mark.parametrize("arguments", [["--json"], ["--json", "--steps", os.devnull]])
def test_json_needs_no_heavy_package(arguments):
    heavy = ("numpy", "tokenizers", "fastapi", "torch", "rich", "jinja2", "gguf", "httpx")
    code = (
        "import sys\n"
        "from everbatch.cli.main import cli\n"
        f"cli.main(['simulate', 'golden-stall', *{arguments!r}], standalone_mode=False)\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stderr.strip() == "[]"
    assert json.loads(ran.stdout)["steps"] == 12


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_terminal_without_unicode_gets_letters(tmp_path, arguments):
    path = tmp_path / "mine.json"
    path.write_text(scenario_text([{**TWO[0], "id": "名"}]), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "everbatch.cli.main", "simulate", str(path), *arguments],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    )

    assert ran.stdout.isascii()
    assert (b"P==" in ran.stdout) is (not arguments)


def test_the_same_bytes_in_processes_with_other_hash_seeds(tmp_path):
    outputs = []
    for seed in ("1", "2"):
        files = [tmp_path / f"{name}-{seed}" for name in ("steps", "events")]
        command = [sys.executable, "-m", "everbatch.cli.main", "simulate", "golden-shortage"]
        ran = subprocess.run(
            [*command, "--json", f"--steps={files[0]}", f"--events={files[1]}"],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        outputs.append((ran.stdout, *(path.read_bytes() for path in files)))

    assert outputs[0] == outputs[1]


def test_a_scenario_may_come_through_a_pipe():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        file.write(scenario_text())
    answer = everbatch("simulate", f"/dev/fd/{reading}", "--json")
    os.close(reading)

    assert json.loads(answer.out)["steps"] == 3


def test_a_dash_is_standard_input(scenario):
    command = [sys.executable, "-m", "everbatch.cli.main", "simulate", "-", "--json"]
    text = scenario.read_bytes()
    given = subprocess.run(command, input=text, capture_output=True, check=True)
    summary = json.loads(given.stdout)

    assert (summary["scenario"], list(summary["requests"])) == ("stdin", ["a", "b"])


@pytest.mark.parametrize(("steps", "has_timeline"), [(10_000, True), (10_001, False)])
def test_a_timeline_that_is_left_out_is_mentioned(tmp_path, steps, has_timeline):
    path = tmp_path / "s.json"
    path.write_text(scenario_text(run={"horizon": steps}), encoding="utf-8")
    out = everbatch("simulate", path).out

    assert ("slot 1" in out) is has_timeline
    assert ("no timeline of slots" in out) is not has_timeline


def test_a_run_in_which_nothing_ran_says_so_and_has_no_empty_tables(tmp_path):
    tables = {
        "engine": {"max_num_seqs": 2, "max_num_batched_tokens": 8, "num_blocks": 2},
        "clock": {"kind": "nominal"},
        "hardware": {"name": "l4"},
        "model": {"name": "nominal-8b"},
        "requests": [{"id": "a", "prompt_tokens": 99, "output_tokens": 1}],
    }
    (tmp_path / "s.json").write_text(json.dumps(tables), encoding="utf-8")
    out = everbatch("simulate", tmp_path / "s.json").out

    assert "nothing ran" in out and "a was refused: " in out
    assert "()" not in out
    for absent in ("throughput", "of the time", "time to first token", "█"):
        assert absent not in out


def test_ids_that_are_long_are_told_apart_in_a_narrow_terminal():
    out = everbatch("simulate", "incident").out
    rows = [line.split() for line in out.splitlines() if line.startswith("document")]

    assert [row[0] for row in rows] == [f"document{number}" for number in range(10, 20)]
    assert "times in seconds" in out
    assert re.search(r"^ *128 to 255 +340 +17\.7 ms$", out, re.MULTILINE)
