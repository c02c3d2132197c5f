"""What the candidate for Vidur gives it: a trace in its columns, profiles of a step's time."""

import csv
import lzma

import pytest
from peers import vidur_run

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def rows(path, opener=open) -> list[dict[str, str]]:
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_times_of_a_trace_are_seconds_since_its_first_request(tmp_path):
    (tmp_path / "azure.csv").write_text(TRACE, encoding="utf-8")

    count = vidur_run._write_trace(tmp_path / "azure.csv", tmp_path / "trace.csv")

    first, second = rows(tmp_path / "trace.csv")
    assert count == 2
    assert float(first["Time"]) == 0
    assert float(second["Time"]) == pytest.approx(4.314579)
    assert (second["PromptTokenCount"], second["CompletionTokenCount"]) == ("396", "109")
    assert first["Date"] == vidur_run.DATE


def test_a_step_of_the_profiles_takes_as_long_as_reading_the_weights(tmp_path):
    vidur_run._write_profiles(tmp_path)

    snapshot = tmp_path / "compute" / "datasets--made-up--llama-3-8b-h100" / "snapshots" / "0"
    smallest = rows(snapshot / "mlp.csv.xz", lzma.open)[0]
    layer_ms = sum(float(smallest[f"time_stats.{name}.median"]) for name in vidur_run.OPERATIONS)
    # 16 GB at 3.35 TB/s, 32 layers.
    assert 32 * layer_ms == pytest.approx(16e9 / 3.35e12 * 1e3, rel=0.05)
    decodes = [
        row
        for row in rows(snapshot / "attention.csv.xz", lzma.open)
        if row["prefill_chunk_size"] == "0"
    ]
    assert decodes
    assert all(float(row["time_stats.attn_prefill.median"]) == 0 for row in decodes)
