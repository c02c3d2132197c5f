"""Flags of other engines that serve models, and what takes their place here.

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


def hint(flag: str, command: str | None) -> str | None:
    """Give what to do in place of a flag, if another engine has it."""
    if command not in COMMANDS or flag not in HINTS:
        return None
    return HINTS[flag].format(command=command)
