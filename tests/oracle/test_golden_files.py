"""The golden files are what transformers answers today: the script that made them checks them."""

import subprocess
import sys
from pathlib import Path

import pytest

from everbatch.assemble.model_source import resolve_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.oracle
@pytest.mark.model
@pytest.mark.timeout(1_800)
def test_the_golden_files_are_the_oracle_s_answers():
    script = ROOT / "scripts" / "make_golden.py"
    model = resolve_model(None).path
    check = subprocess.run(
        [sys.executable, str(script), "--model", str(model), "--check"],
        capture_output=True,
        text=True,
    )

    assert check.returncode == 0, check.stdout + check.stderr
