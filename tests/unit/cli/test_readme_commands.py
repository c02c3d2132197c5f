"""The README's commands that need no model run as they stand, one after the other."""

import re
import shlex
from pathlib import Path

from command_line import everbatch

README = Path(__file__).parents[3] / "README.md"
BEGINNING = "Without a model, on the virtual clock, one after the other:\n\n"


def test_the_readme_s_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text(encoding="utf-8").partition(BEGINNING)[2]
    lines = re.findall(r"^    everbatch (.+)$", text.partition("\n\n")[0], re.MULTILINE)
    failed = []
    for line in lines:
        words = shlex.split(line, comments=True)
        target = words[words.index(">") + 1] if ">" in words else None
        answer = everbatch(*(words[: words.index(">")] if target else words))
        if answer.status != 0 or answer.out == "":
            failed.append((line, answer.status, answer.err))
        if target is not None:
            Path(target).write_text(answer.out, encoding="utf-8")

    assert len(lines) > 6
    assert failed == []
