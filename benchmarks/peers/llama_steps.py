"""Candidate: llama.cpp's decode and prefill rates, printed as one JSON line.

    python benchmarks/peers/llama_steps.py LLAMA_BATCHED_BENCH MODEL.gguf [--batches …] …

Runs llama-batched-bench, which llama.cpp brings along: all prompts first, then 64 outputs for all
of them together. It times each part as a whole, so its decode rate is a mean where the other
candidates give a median of steps; its figures have the same names. Standard library only.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from offline_workload import print_figures
from steps_workload import MAX_NUM_BATCHED_TOKENS, NUM_DECODES, arguments

BATCH_TOKENS = 2048
"""Of one call; it cuts them into pieces of MAX_NUM_BATCHED_TOKENS, as the others' steps are."""


def command(bench: str, model: str, batches: Sequence[int], prompt: int, threads: int) -> list[str]:
    """Give the command that measures these batches, each with a cache that just holds it."""
    context = max(batches) * (prompt + NUM_DECODES)
    sizes = {
        "-m": model,
        "-t": threads,
        "-c": context,
        "-b": BATCH_TOKENS,
        "-ub": MAX_NUM_BATCHED_TOKENS,
        "-npp": prompt,
        "-ntg": NUM_DECODES,
        "-npl": ",".join(map(str, batches)),
    }
    flags = [str(part) for pair in sizes.items() for part in pair]
    return [bench, *flags, "--output-format", "jsonl"]


def figures(output: str, batches: Sequence[int], prompt: int) -> dict[str, float]:
    """Give tokens per second by batch size; RuntimeError if a size is missing.

    A size that does not fit into its cache is left out by it without a word.
    """
    rows: dict[int, dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rows[row["pl"]] = row
    named: dict[str, float] = {}
    for batch in batches:
        row = rows.get(batch)
        if row is None or row["pp"] != prompt or row["tg"] != NUM_DECODES:
            raise RuntimeError(f"no row for batch {batch} of {prompt} tokens in:\n{output[-2000:]}")
        named[f"decode_tokens_per_s_batch_{batch}"] = row["speed_tg"]
        named[f"prefill_tokens_per_s_batch_{batch}"] = row["speed_pp"]
    return named


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], first="llama_batched_bench")
    options = parser.parse_args()
    sizes = (options.batches, options.prompt)
    argv = command(options.llama_batched_bench, options.model, *sizes, options.threads)
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        print(process.stderr[-2_000:], file=sys.stderr)
        sys.exit(process.returncode)
    print_figures(figures(process.stdout, *sizes), llama_cpp=Path(argv[0]).name)


if __name__ == "__main__":
    main()
