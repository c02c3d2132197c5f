"""Candidate in Vidur's environment: one run of an Azure trace, from start to exit.

    VIDUR_VENV/bin/python benchmarks/peers/vidur_run.py TRACE.csv [--folder FOLDER]

Engine and model are those of scenario "azure" in bench_simulator.py, and everything that Vidur can
leave unwritten is: no metrics, plots or Chrome trace. Its measured profiles are not in its package
(it downloads them), so times of passes are fitted here to made-up ones that grow linearly: good for
how fast it simulates, not for what comes out. What it fits is kept in FOLDER; the first run there
fills it and is not timed. Prints `runs_per_s` (1 / `seconds`) as one JSON line.
"""

import argparse
import csv
import json
import lzma
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import product
from pathlib import Path

COMPUTE, NETWORK = "made-up/llama-3-8b-h100", "made-up/h100-dgx"
DATE = "2023-11-16"
MODEL, MAX_LEN, CHUNK, SLOTS, BLOCKS = "meta-llama/Llama-3-8B", 16_384, 2048, 256, 28_610
SHAPE = {
    "n_head": 32,
    "n_q_head": 32,
    "n_kv_head": 8,
    "n_embd": 4096,
    "n_expanded_embd": 14_336,
    "use_gated_mlp": True,
    "vocab_size": 128_256,
    "block_size": 16,
    "num_tensor_parallel_workers": 1,
}
OPERATIONS = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "attn_rope",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
)
OPERATION_MS, TOKEN_MS, CONTEXT_MS = 0.016, 6e-5, 1.2e-6
"""Of a layer: of each operation, of each for a token, and of reading a token from the cache."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    folder = Path(tempfile.gettempdir()) / "everbatch-vidur"
    parser.add_argument("--folder", type=Path, default=folder, help=f"default: {folder}")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    is_new = not (options.folder / "ready").exists()
    if is_new:
        _write_trace(options.trace, options.folder / "trace.csv", limit=100)
        _write_profiles(options.folder / "cache" / "profiling_data")
        _run(options.folder)
        (options.folder / "ready").touch()
    num_requests = _write_trace(options.trace, options.folder / "trace.csv")
    start_ns = time.perf_counter_ns()
    _run(options.folder)
    seconds = (time.perf_counter_ns() - start_ns) / 1e9
    rss_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures = {"runs_per_s": 1 / seconds, "seconds": seconds, "num_requests": num_requests}
    print(json.dumps({**figures, "rss_mb": round(rss_mb, 1)}))
    return 0


def _run(folder: Path) -> None:
    command = [sys.executable, "-m", "vidur.main", *_flags(folder)]
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    subprocess.run(
        command, cwd=folder, env={**os.environ, **offline}, stdout=subprocess.DEVNULL, check=True
    )


def _flags(folder: Path) -> Iterator[str]:
    """Give the flags that make it what scenario "azure" describes, and silent."""
    predictor = {
        "model_profiling_dataset": COMPUTE,
        "network_profiling_dataset": NETWORK,
        "prediction_max_prefill_chunk_size": CHUNK,
        "prediction_max_batch_size": SLOTS,
        "prediction_max_tokens_per_request": MAX_LEN,
        "k_fold_cv_splits": 2,
        "num_training_job_threads": 1,
        "num_estimators": 4,
        "max_depth": 16,
        "min_samples_split": 2,
        "cache_dir": folder / "cache",
    }
    trace = {
        "trace_file": folder / "trace.csv",
        "date": DATE,
        "prefill_scale_factor": 1,
        "decode_scale_factor": 1,
        "time_scale_factor": 1,
        "max_tokens": MAX_LEN,
    }
    values = {
        "log_level": "error",
        "replica_config_model_name": MODEL,
        "replica_config_device": "h100",
        "replica_config_network_device": "h100_dgx",
        "replica_config_num_pipeline_stages": 1,
        "replica_config_tensor_parallel_size": 1,
        "cache_config_num_blocks": BLOCKS,
        "replica_scheduler_config_type": "sarathi",
        "sarathi_scheduler_config_batch_size_cap": SLOTS,
        "sarathi_scheduler_config_chunk_size": CHUNK,
        "request_generator_config_type": "trace_replay",
        "execution_time_predictor_config_type": "random_forrest",
        "metrics_config_output_dir": folder / "output",
        **{f"trace_request_generator_config_{key}": value for key, value in trace.items()},
        **{
            f"random_forrest_execution_time_predictor_config_{key}": value
            for key, value in predictor.items()
        },
    }
    for key, value in values.items():
        yield from (f"--{key}", str(value))
    yield "--random_forrest_execution_time_predictor_config_use_native_execution_time_predictor"
    for name in (
        "write_metrics",
        "enable_chrome_trace",
        "store_plots",
        "store_request_metrics",
        "store_batch_metrics",
        "store_utilization_metrics",
    ):
        yield f"--no-metrics_config_{name}"


def _write_trace(source: Path, target: Path, limit: int | None = None) -> int:
    """Write an Azure trace in the columns of `trace_replay`; gives the number of requests."""
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:limit]
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        for row, at in zip(rows, times, strict=True):
            seconds = (at - times[0]).total_seconds()
            writer.writerow((DATE, seconds, row["ContextTokens"], row["GeneratedTokens"]))
    return len(rows)


def _write_profiles(folder: Path) -> None:
    """Write made-up profiles where its downloads would lie."""
    num_tokens = [1, *range(64, 4097, 64)]
    mlp = [
        {f"time_stats.{name}.median": OPERATION_MS + TOKEN_MS * count for name in OPERATIONS}
        | SHAPE
        | {"num_tokens": count}
        for count in num_tokens
    ]
    compute = _download(folder / "compute", COMPUTE, {"model": MODEL, "device_sku": "h100"})
    _write_table(compute / "mlp.csv.xz", mlp)
    _write_table(compute / "attention.csv.xz", [*_prompts(), *_decodes()])
    # One device: nothing is sent, but it looks for the files.
    network = _download(folder / "network", NETWORK, {"sku": "h100_dgx"})
    for name in ("all_reduce", "send_recv"):
        _write_table(network / f"{name}.csv.xz", [{"num_workers": 1}])


def _prompts() -> Iterator[dict[str, object]]:
    for chunk, context in product(range(128, CHUNK + 1, 128), range(0, MAX_LEN + 1, 1024)):
        yield _attention(chunk, 1, context, "attn_prefill", CONTEXT_MS * (context + chunk))


def _decodes() -> Iterator[dict[str, object]]:
    for batch, context in product(range(1, SLOTS + 1, 15), range(0, MAX_LEN + 1, 1024)):
        yield _attention(0, batch, context, "attn_decode", CONTEXT_MS * batch * context)


def _attention(
    chunk: int, batch: int, context: int, operation: str, duration_ms: float
) -> dict[str, object]:
    other = "attn_decode" if operation == "attn_prefill" else "attn_prefill"
    return {
        **SHAPE,
        "prefill_chunk_size": chunk,
        "batch_size": batch,
        "kv_cache_size": context,
        f"time_stats.{operation}.median": duration_ms,
        f"time_stats.{other}.median": 0.0,
        "time_stats.attn_kv_cache_save.median": TOKEN_MS * max(chunk, batch),
    }


def _download(folder: Path, name: str, facts: dict[str, str]) -> Path:
    """Make the folder that huggingface_hub looks into while it is offline."""
    root = folder / f"datasets--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / "0"
    snapshot.mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text("0", encoding="utf-8")
    (snapshot / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    return snapshot


def _write_table(path: Path, rows: Iterable[dict[str, object]]) -> None:
    rows = list(rows)
    with lzma.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
