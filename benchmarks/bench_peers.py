"""Benchmark: everbatch against openvino-genai and llama.cpp on the CPU, step by step.

    python benchmarks/bench_peers.py [NAME …] --model DIR
        --openvino-python PYTHON --openvino-model F16.gguf
        --llama-bench PROGRAM --llama-model BF16.gguf
        --llama-1b DIR --openvino-llama-1b F16.gguf

The comparisons are those of COMPARISONS, each through the harness, with what is promised; fails
(status 1) where a ratio is missed. A comparison whose peer or model is not named, or not there, is
skipped with a message; status 2 if nothing was compared. benchmarks/README.md says how to make
them. All run with as many threads as `--threads` says.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import MAX_ROUNDS, MIN_KEPT_ROUNDS, Candidate, Plan, exit_status
from positive_numbers import positive

HERE = Path(__file__).resolve().parent
OPENVINO, LLAMA_CPP = "openvino-genai", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Batch sizes, tokens of each prompt, promised ratios, and which options name the models."""

    peer: str
    batches: tuple[int, ...]
    prompt: int
    at_least: dict[str, float]
    model: str = "model"
    """The option that names ours."""
    peer_model: str = "openvino_model"

    @property
    def figures(self) -> tuple[str, ...]:
        return tuple(
            f"{kind}_tokens_per_s_batch_{batch}"
            for kind in ("decode", "prefill")
            for batch in self.batches
        )


COMPARISONS = {
    "smollm2-openvino": Comparison(
        OPENVINO,
        (8, 32, 64),
        128,
        {
            **{f"decode_tokens_per_s_batch_{batch}": 1.4 for batch in (8, 32, 64)},
            "prefill_tokens_per_s_batch_32": 0.95,
        },
    ),
    "smollm2-llama-cpp": Comparison(
        LLAMA_CPP, (1,), 128, {"decode_tokens_per_s_batch_1": 0.93}, peer_model="llama_model"
    ),
    "smollm2-1000-openvino": Comparison(
        OPENVINO,
        (16, 32),
        1000,
        {f"decode_tokens_per_s_batch_{batch}": 1.3 for batch in (16, 32)},
    ),
    "llama-1b-openvino": Comparison(
        OPENVINO,
        (1, 8),
        128,
        {f"decode_tokens_per_s_batch_{batch}": 1.4 for batch in (1, 8)},
        model="llama_1b",
        peer_model="openvino_llama_1b",
    ),
}


def missing(comparison: Comparison, options: argparse.Namespace) -> list[str]:
    """Say what the comparison lacks; nothing if it can run."""
    program = "openvino_python" if comparison.peer == OPENVINO else "llama_bench"
    lacks = []
    for name in (comparison.model, program, comparison.peer_model):
        path = getattr(options, name)
        flag = f"--{name.replace('_', '-')}"
        if path is None:
            lacks.append(f"{flag} is not given")
        elif not path.exists():
            lacks.append(f"{flag} {path} does not exist")
    return lacks


def plan(name: str, comparison: Comparison, options: argparse.Namespace) -> Plan:
    """Give the comparison with its two commands."""
    sizes = (
        *("--batches", *map(str, comparison.batches)),
        *("--prompt", str(comparison.prompt)),
        *("--threads", str(options.threads)),
    )
    ours = (sys.executable, str(HERE / "steps.py"), str(getattr(options, comparison.model)))
    model = str(getattr(options, comparison.peer_model))
    if comparison.peer == OPENVINO:
        script = str(HERE / "peers" / "openvino_steps.py")
        theirs = (str(options.openvino_python), script, model)
    else:
        script = str(HERE / "peers" / "llama_steps.py")
        theirs = (sys.executable, script, str(options.llama_bench), model)
    return Plan(
        name=name,
        a=Candidate("everbatch", (*ours, *sizes)),
        b=Candidate(comparison.peer, (*theirs, *sizes)),
        figures=comparison.figures,
        at_least=comparison.at_least,
        min_kept_rounds=options.rounds,
        max_rounds=max(options.rounds, options.max_rounds),
    )


def run(options: argparse.Namespace) -> int:
    """Run what can be run; give the exit status."""
    statuses: dict[str, int] = {}
    for name in options.names or COMPARISONS:
        lacks = missing(COMPARISONS[name], options)
        if lacks:
            print(f"{name}: skipped, {'; '.join(lacks)}", flush=True)
            continue
        print(f"{name}:", flush=True)
        statuses[name] = exit_status(plan(name, COMPARISONS[name], options))
    if not statuses:
        print(
            "error: nothing was compared: name peers and models, as benchmarks/README.md says",
            file=sys.stderr,
        )
        return 2
    for name, status in statuses.items():
        print(f"{name}: {('as promised', 'missed', 'nothing is proved')[status]}")
    return max(statuses.values())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--model", type=Path, help="SmolLM2-135M as everbatch loads it")
    parser.add_argument("--openvino-python", type=Path, help="the interpreter that has it")
    parser.add_argument("--openvino-model", type=Path, help="the same model, F16 GGUF")
    parser.add_argument("--llama-bench", type=Path, help="llama-batched-bench")
    parser.add_argument("--llama-model", type=Path, help="the same model, BF16 GGUF")
    parser.add_argument("--llama-1b", type=Path, help="what random_llama.py wrote")
    parser.add_argument("--openvino-llama-1b", type=Path, help="the same, F16 GGUF")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=MIN_KEPT_ROUNDS, help="rounds to keep")
    parser.add_argument("--max-rounds", type=positive, default=MAX_ROUNDS, help="rounds to try")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    return options


if __name__ == "__main__":
    sys.exit(run(parse()))
