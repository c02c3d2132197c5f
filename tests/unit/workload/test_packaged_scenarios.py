"""The built-in scenarios and the template are part of what is installed."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.full
def test_a_wheel_has_them_and_runs_the_lesson(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), ROOT],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "installed"
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(unpacked)
    folder = ROOT / "src" / "everbatch" / "workload"
    packaged = {f"everbatch/workload/{path.relative_to(folder)}" for path in folder.rglob("*.toml")}

    # Without `site`, or an editable installation would be found before the wheel.
    code = "import everbatch, everbatch.cli.main as cli; print(everbatch.__file__); cli.main()"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, "simulate", "lesson-continuous"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": os.pathsep.join([str(unpacked), str(Path(click.__file__).parents[1])]),
            "PYTHONIOENCODING": "utf-8",
        },
    )

    assert len(packaged) > 10
    assert packaged <= names
    assert ran.stdout.startswith(str(unpacked))
    assert "300 of 320 slot iterations" in ran.stdout
