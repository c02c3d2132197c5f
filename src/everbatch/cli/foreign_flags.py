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
_OF_THE_HUB = "the hub's own settings apply (HF_HOME, HF_TOKEN): leave it out"
_OF_A_REQUEST = "each request says it: leave it out"
_PINNED = "start under `taskset -c`, and give --pin-threads for a CPU for each thread"
_NO_GPU = "there is no GPU: leave it out"
_A_PROXY = "a proxy in front does it (deploy/README.md): leave it out"
_NOT_YET = "not supported yet: leave it out"
_TOOLS = "calls are found by the model's template: leave it out"

_OF_VLLM = {
    "--model": "the model is an argument: everbatch {command} MODEL",
    "--gpu-memory-utilization": "there is no GPU; give --kv-cache-memory, such as 512MiB",
    "--dtype": _OF_THE_KERNELS,
    "--kv-cache-dtype": _OF_THE_KERNELS,
    "--quantization": _OF_THE_KERNELS,
    "--load-format": _FROM_THE_MODEL,
    "--tensor-parallel-size": _ONE_PROCESS,
    "--pipeline-parallel-size": _ONE_PROCESS,
    "--data-parallel-size": _ONE_PROCESS,
    "--api-server-count": _ONE_PROCESS,
    "--tokenizer": _FROM_THE_MODEL,
    "--tokenizer-mode": _FROM_THE_MODEL,
    "--chat-template": _FROM_THE_MODEL,
    "--hf-overrides": _FROM_THE_MODEL,
    "--revision": _OF_THE_HUB,
    "--download-dir": _OF_THE_HUB,
    "--trust-remote-code": "no code comes with a model: leave it out",
    "--enforce-eager": "nothing is compiled: leave it out",
    "--max-num-queued-reqs": "give --max-queue-requests",
    "--max-num-queued-tokens": "give --max-queue-tokens",
    "--generation-config": "OpenAI's defaults hold, whatever the model's files say: leave it out",
    "--enable-auto-tool-choice": _TOOLS,
    "--tool-call-parser": _TOOLS,
    "--speculative-config": _NOT_YET,
    "--enable-lora": _NOT_YET,
    "--lora-modules": _NOT_YET,
}
# What is of serving alone has no place in `generate`, and what to do names flags of `serve`.
_OF_VLLM_SERVING = {
    "--enable-log-requests": "give --access-log a file",
    "--disable-log-stats": "give --status-interval many seconds",
    "--uvicorn-log-level": "requests are logged to a file of their own, if at all: leave it out",
    "--ssl-keyfile": _A_PROXY,
    "--ssl-certfile": _A_PROXY,
    "--root-path": _A_PROXY,
}
_OF_LLAMA_SERVER = {
    "--hf-repo": "the model is an argument: everbatch {command} org/name:file.gguf",
    "--ctx-size": "give --kv-cache-memory for all requests, --max-model-len for one",
    "--parallel": "give --max-num-seqs",
    "--batch-size": "give --max-num-batched-tokens",
    "--ubatch-size": "give --max-num-batched-tokens",
    "--gpu-layers": _NO_GPU,
    "--n-gpu-layers": _NO_GPU,
    "--flash-attn": "attention is always fused: leave it out",
    "--cache-type-k": _OF_THE_KERNELS,
    "--cache-type-v": _OF_THE_KERNELS,
    "--cpu-mask": _PINNED,
    "--cpu-range": _PINNED,
    "--cpu-strict": _PINNED,
    "--mlock": "weights are packed in memory: leave it out",
    "--no-mmap": "weights are packed in memory: leave it out",
    "--jinja": "the model's own template runs as jinja: leave it out",
}
_OF_LLAMA_SERVER_SERVING = {
    "--temp": _OF_A_REQUEST,
    "--n-predict": _OF_A_REQUEST,
    "--alias": "give --served-model-name",
    "--metrics": "/metrics is always there: leave it out",
    "--slots": "/metrics has the numbers, `everbatch explain` the requests: leave it out",
    "--no-webui": "there is no web page: leave it out",
}

HINTS = _OF_VLLM | _OF_LLAMA_SERVER
SERVING_HINTS = _OF_VLLM_SERVING | _OF_LLAMA_SERVER_SERVING
"""Of `everbatch serve` alone."""


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

_BENCH, _SERVE = "bench serve", "serve"
SHORT_HINT = "flags have long names alone; docs/migration.md has llama-server's and ours"


def hint(flag: str, command_path: str) -> str | None:
    """Give what to do in place of a flag, if another engine has it; `command_path` as click's."""
    command = command_path.partition(" ")[2]
    if command == _BENCH:
        return BENCH_HINTS.get(flag)
    if command not in COMMANDS:
        return None
    if not flag.startswith("--"):
        return SHORT_HINT
    known = HINTS | SERVING_HINTS if command == _SERVE else HINTS
    return known[flag].format(command=command) if flag in known else None
