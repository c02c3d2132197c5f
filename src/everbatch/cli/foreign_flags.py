"""Flags of other engines and of their benchmarks, and what takes their place here.

Belongs here: one line about each, told in place of "no such option". Imported when it is needed.
"""

COMMANDS = ("serve", "generate")
"""The commands that users of other engines try them with."""

_ONE_PROCESS = "one process computes, on the cores it may use (--threads): leave it out"
_OF_THE_KERNELS = (
    "weights and KV cache are bfloat16, under --kernels reference float32, whatever the file "
    "holds: leave it out"
)
_FROM_THE_MODEL = "it is taken from the model's files: leave it out"

HINTS = {
    "--model": "the model is an argument: everbatch {command} MODEL",
    "--gpu-memory-utilization": "there is no GPU; give --kv-cache-memory, such as 512MiB",
    "--dtype": _OF_THE_KERNELS,
    "--kv-cache-dtype": _OF_THE_KERNELS,
    "--quantization": _OF_THE_KERNELS,
    "--tensor-parallel-size": _ONE_PROCESS,
    "--pipeline-parallel-size": _ONE_PROCESS,
    "--data-parallel-size": _ONE_PROCESS,
    "--tokenizer": _FROM_THE_MODEL,
    "--chat-template": _FROM_THE_MODEL,
    "--trust-remote-code": "no code comes with a model: leave it out",
    "--enforce-eager": "nothing is compiled: leave it out",
    "--uvicorn-log-level": "requests are logged to a file of their own, if at all: leave it out",
}


_URL = "give --url, such as http://127.0.0.1:8000"
_NO_TOKENIZER = "no tokenizer is needed, the server counts: leave it out"
_RANGE = "give --input-len and --output-len a range, such as 64-256"

BENCH_HINTS = {
    "--host": _URL,
    "--port": _URL,
    "--backend": "any server with OpenAI's API will do: --endpoint says which of its two",
    "--tokenizer": _NO_TOKENIZER,
    "--skip-tokenizer-init": _NO_TOKENIZER,
    "--trust-remote-code": _NO_TOKENIZER,
    "--dataset-name": "give --dataset a file, or leave it out for random texts",
    "--dataset-path": "give the file as --dataset",
    "--random-range-ratio": _RANGE,
    "--percentile-metrics": "all latencies are told: leave it out",
    "--save-result": "give --json a file",
    "--save-detailed": "give --json a file, and --detailed",
    "--result-filename": "give it as --json",
    "--result-dir": "give --json a file with its folder",
    "--num-warmups": "what is asked first is not counted: leave it out",
    "--disable-tqdm": "nothing is drawn but in a terminal: leave it out",
    "--plot-timeline": "give --html a file",
}
"""Of vLLM's `bench serve`."""

_BENCH = "bench serve"


def hint(flag: str, command_path: str) -> str | None:
    """Give what to do in place of a flag, if another engine has it; `command_path` as click's."""
    command = command_path.partition(" ")[2]
    if command == _BENCH:
        return BENCH_HINTS.get(flag)
    if command not in COMMANDS or flag not in HINTS:
        return None
    return HINTS[flag].format(command=command)
