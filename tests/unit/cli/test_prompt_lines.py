"""Lines of a prompt file: what they may be, and errors that name them by number."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from everbatch.base.errors import InvalidRequest
from everbatch.cli.prompts import Task, read_tasks
from everbatch.engine.sampling_params import SamplingParams


def tasks_of(directory: Path, content: str | bytes, **defaults: Any) -> list[Task]:
    path = directory / "prompts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_tasks(str(path), defaults)


def test_plain_lines_are_prompts_and_empty_ones_none(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path, "one\n\n  two {x} \r\n \t\nthree", max_tokens=5)

    assert [task.prompt for task in tasks] == ["one", "  two {x} ", "three"]
    assert [task.number for task in tasks] == [1, 3, 5]
    assert {task.params.max_tokens for task in tasks} == {5}


def test_lines_may_have_samples_and_a_standing_in_the_queue(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path, 'x\n{"prompt": "y", "n": 3, "priority": -2, "tenant": "a"}', n=2)

    assert [task.params.n for task in tasks] == [2, 3]
    assert [(task.priority, task.tenant) for task in tasks] == [(0, ""), (-2, "a")]


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    inside = "a\u2028b\x0bc\x85d\x0ce"

    assert [task.prompt for task in tasks_of(tmp_path, f"{inside}\nnext")] == [inside, "next"]


def test_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert tasks_of(tmp_path, '\ufeff{"prompt": "x"}')[0].prompt == "x"


def test_objects_have_a_prompt_options_of_their_own_and_an_id(tmp_path: Path) -> None:
    lines = (
        '{"prompt": "a", "id": {"any": 1}, "temperature": 0, "stop": "x", "logit_bias": {"5": 1}}\n'
        '{"prompt_token_ids": [1, 2], "max_tokens": 3}\n'
        '{"prompt": [3, 4], "top_k": -1}\n'
        ' {"messages": [{"role": "user", "content": "hi"}], "stop": ["y", "z"]}\n'
    )
    tasks = tasks_of(tmp_path, lines, max_tokens=9, temperature=0.5, stop=("d",))

    assert tasks[0] == Task(
        1,
        {"any": 1},
        "a",
        None,
        SamplingParams(temperature=0, stop="x", logit_bias={5: 1}, max_tokens=9),
    )
    assert [task.prompt for task in tasks] == ["a", [1, 2], [3, 4], None]
    assert [task.params.max_tokens for task in tasks] == [9, 3, 9, 9]
    assert tasks[1].params.stop == ("d",)
    assert tasks[3].messages == [{"role": "user", "content": "hi"}]
    assert tasks[3].params.stop == ("y", "z")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "starts with .{. but is not JSON"),
        ('{"prompt": "a"} {"prompt": "b"}', "not JSON"),
        ('{"prompt": NaN}', "not JSON"),
        ('{"prompt": "\\ud800"}', "not JSON"),
        ('{"a":' * 5_000, "not JSON"),
        ("{}", "exactly one of prompt, prompt_token_ids, messages"),
        ('{"prompt": "a", "messages": []}', "exactly one of"),
        ('{"prompt": "a", "n": 2, "best_of": 2}', "unknown field best_of: there are prompt,"),
        ('{"prompt": "a", "temprature": 0}', "unknown field temprature: did you mean temperature?"),
        ('{"prompt": "a", "n": 0}', r"n must lie in \[1, 128\], got 0"),
        ('{"prompt": "a", "priority": "high"}', "priority must be an integer, not 'high'"),
        ('{"prompt": "a", "priority": true}', "priority must be an integer, not True"),
        ('{"prompt": "a", "tenant": 5}', "tenant must be text, not 5"),
        ('{"prompt": 5}', "prompt must be text or a list of token ids, not int"),
        ('{"prompt": null}', "prompt must be text or a list of token ids, not NoneType"),
        ('{"prompt_token_ids": "a"}', "prompt_token_ids must be a list, not str"),
        ('{"messages": {"role": "user"}}', "messages must be a list, not dict"),
        ('{"prompt": "a", "temperature": 9}', r"temperature must lie in \[0, 2\], got 9"),
        ('{"prompt": "a", "temperature": "1"}', "temperature must be a number"),
        ('{"prompt": "a", "seed": 1' + "0" * 500 + "}", "seed"),
        ('{"prompt": "a", "stop": 5}', "stop must be a list of strings"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias has the key 'x', which is no"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str | bytes, words: str) -> None:
    raw = line if isinstance(line, bytes) else line.encode()

    with pytest.raises(InvalidRequest, match=rf"line 3\b.*{words}") as caught:
        tasks_of(tmp_path, b"fine\n\n" + raw + b"\nfine")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_bad_option_for_all_lines_is_no_line_s(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^max_tokens must lie in"):
        tasks_of(tmp_path, "fine", max_tokens=0)


@pytest.mark.parametrize("content", ["", "\n \n\t\n"])
def test_file_without_prompts_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"there are no prompts in .*prompts: write one a line"
    ):
        tasks_of(tmp_path, content)


def test_file_that_cannot_be_read_is_told_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"absent \(No such file.*--prompts"):
        read_tasks(str(tmp_path / "absent"), {})


def test_standard_input_is_read_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n".encode())))

    assert [task.prompt for task in read_tasks("-", {})] == ["é"]
