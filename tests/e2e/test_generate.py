"""`everbatch generate` as a process: answers by index, pipes, terminals, and leaving early."""

import json
import os
import pty
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import WAIT_S, assert_one_line_error, run, start
from tiny_model import write_model

from everbatch import LLM, SamplingParams

ENDLESS = 200_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_model(directory, max_position_embeddings=ENDLESS + 1_000)


def write_prompts(directory: Path, *lines: str | dict[str, Any]) -> Path:
    path = directory / "prompts"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def answers_in(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_answers_have_the_index_of_their_prompt_and_all_fields(model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "yo"}]
    prompts = write_prompts(
        tmp_path,
        "plain é",
        "",
        {"prompt": "own", "id": "b", "max_tokens": 3, "stop": ["zzz"]},
        {"prompt_token_ids": [104, 105], "id": 7, "max_tokens": 2},
        {"messages": messages, "max_tokens": 1},
    )
    done = run("generate", model, "--prompts", prompts, "--max-tokens", "9", "--temperature", "0")
    answers = answers_in(done.stdout)
    by_index = sorted(answers, key=lambda answer: answer["index"])
    greedy = SamplingParams(temperature=0, max_tokens=9)
    [expected] = LLM(model, num_blocks=64).generate("plain é", greedy)

    assert (done.returncode, done.stderr) == (0, "")
    assert [answer["index"] for answer in answers] == [3, 2, 1, 0]
    assert by_index[0] == {
        "index": 0,
        "prompt": "plain é",
        "text": expected.outputs[0].text,
        "finish_reason": "length",
        "stop_reason": None,
        "prompt_tokens": len("plain é".encode()),
        "completion_tokens": 9,
    }
    assert [answer.get("id") for answer in by_index] == [None, "b", 7, None]
    assert [answer["prompt"] for answer in by_index[1:]] == ["own", [104, 105], messages]


def test_log_probabilities_that_were_asked_for_are_in_the_answer(
    model: Path, tmp_path: Path
) -> None:
    prompts = write_prompts(tmp_path, {"prompt": "x", "logprobs": 1}, "y")
    done = run("generate", model, "--prompts", prompts, "--max-tokens", "3", "--temperature", "0")
    told, plain = sorted(answers_in(done.stdout), key=lambda answer: answer["index"])
    greedy = SamplingParams(temperature=0, max_tokens=3, logprobs=1)
    [expected] = LLM(model, num_blocks=64).generate("x", greedy)

    assert told["logprobs"] == [
        {str(token_id): asdict(one) for token_id, one in at.items()}
        for at in expected.outputs[0].logprobs
    ]
    assert len(told["logprobs"]) == 3
    assert "logprobs" not in plain


def test_same_seed_gives_the_same_answers(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, *["again"] * 5)

    def texts(*flags: str) -> list[str]:
        done = run("generate", model, "--prompts", prompts, "--max-tokens", "6", *flags)
        return [answer["text"] for answer in answers_in(done.stdout)]

    assert texts("--seed", "4") == texts("--seed", "4", "--max-num-seqs", "2")
    assert texts("--seed", "4") != texts("--seed", "5")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "x", "frequency": 1}, ["line 3", "unknown field frequency"]),
        ({"prompt_token_ids": [99_999]}, ["line 3", "token id 99999"]),
        ({"prompt": "x" * (ENDLESS + 2_000)}, ["line 3", "202,000"]),
        ({"messages": []}, ["line 3"]),
        ({"messages": [{"role": "user"}]}, ["line 3"]),
        ({"messages": ["x"]}, ["line 3"]),
    ],
)
def test_bad_line_is_told_before_anything_is_written(
    model: Path, tmp_path: Path, line: dict[str, Any], words: list[str]
) -> None:
    output = tmp_path / "answers"
    output.write_text("of an older run")
    done = run(
        "generate", model, "--prompts", write_prompts(tmp_path, "fine", "", line),
        "--output", output, "--max-tokens", "2",
    )  # fmt: skip

    assert_one_line_error(done, *words)
    assert done.stdout == ""
    assert output.read_text() == "of an older run"


def test_output_replaces_what_was_there(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers"
    output.write_text("x" * 10_000)
    done = run(
        "generate", model, "--prompts", "-", "--output", output, "--max-tokens", "2", stdin="a\nb"
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {answer["index"] for answer in answers_in(output.read_text())} == {0, 1}


def test_reader_that_leaves_after_a_line_is_no_traceback(model: Path, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, *[{"prompt": "x", "max_tokens": n} for n in range(1, 200)])
    process = start("generate", model, "--prompts", prompts)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    process.stdout = None
    _, told = process.communicate(timeout=WAIT_S)

    assert first["index"] == 0
    assert process.returncode == 1
    assert told == ""


def test_interrupted_run_keeps_what_it_has(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers"
    os.mkfifo(output)
    endless = {"prompt": "endless", "max_tokens": ENDLESS, "ignore_eos": True}
    prompts = write_prompts(tmp_path, {"prompt": "short", "max_tokens": 1}, endless)
    process = start("generate", model, "--prompts", prompts, "--output", output)
    with output.open(encoding="utf-8") as lines:
        first = lines.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=WAIT_S)
        rest = lines.read()

    assert json.loads(first)["prompt"] == "short"
    assert rest == ""
    assert process.returncode == 130
    assert told == "everbatch: interrupted: 1 of 2 prompts are answered\n"


def test_standard_output_that_is_full_is_told(model: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        process = start(
            "generate", model, "--prompts", "-", "--max-tokens", "1",
            stdin=subprocess.PIPE, stdout=full,
        )  # fmt: skip
        _, told = process.communicate("a\nb\n", timeout=WAIT_S)

    assert process.returncode == 2
    assert told == (
        "everbatch: cannot write answers any more (No space left on device): 0 of 2 are written\n"
    )


@pytest.mark.parametrize(("num_prompts", "is_shown"), [(40, True), (1, False)])
def test_terminal_sees_a_bar_on_long_work_only(
    model: Path, tmp_path: Path, num_prompts: int, is_shown: bool
) -> None:
    prompts = write_prompts(tmp_path, *["x"] * num_prompts)
    ours, theirs = pty.openpty()
    process = start("generate", model, "--prompts", prompts, "--max-tokens", "20", stderr=theirs)
    os.close(theirs)
    text, _ = process.communicate(timeout=WAIT_S)
    answers = answers_in(text)
    seen = read_terminal(ours)

    assert len(answers) == num_prompts
    assert ("answers" in seen) is is_shown
    assert not is_shown or f"{num_prompts}/{num_prompts}" in seen


def read_terminal(descriptor: int) -> str:
    """Give all that was written to a terminal whose other side is closed."""
    parts = []
    try:
        while part := os.read(descriptor, 65_536):
            parts.append(part)
    except OSError:
        # How Linux tells the end.
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")
