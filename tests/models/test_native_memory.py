"""What the documents promise of memory, in a process that computes with the default model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("everbatch.kernels._native", reason="the native kernels were not built")

pytestmark = pytest.mark.model

MAX_PEAK_BYTES = 700 * 2**20
"""With 256 MiB of KV cache, all in use: docs/kernels.md, Memory."""

# All that a server loads is imported, the cache is written to its end, and a prompt of the default
# budget of a step is computed.
COMPUTE = """
import re
from pathlib import Path

import numpy as np
import everbatch.cli.main, everbatch.server.app
from everbatch import LLM, SamplingParams
from everbatch.assemble.model_source import resolve_model
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.native import NativeKernels
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model

loaded = load_model(resolve_model(None).path)
network = LlamaForCausalLM(loaded.config, loaded.tensors, NativeKernels)
kv = network.allocate_kv(256 * 2**20 // (16 * 23_040), 16)
kv.keys[:] = kv.values[:] = 0
assert kv.num_bytes > 255 * 2**20
positions = np.arange(512, dtype=np.int32)
network.forward(
    PackedBatch(
        input_ids=positions,
        positions=positions,
        cu_seqlens_q=np.array([0, 512], np.int32),
        context_lens=np.array([512], np.int32),
        block_tables=np.arange(32, dtype=np.int32)[None],
        slot_mapping=positions,
        logit_rows=positions[:128],
        num_prefills=1,
    ),
    kv,
)
status = Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory as Linux tells it")
def test_peak_with_all_of_the_kv_cache_in_use_is_below_the_promise() -> None:
    command = [sys.executable, "-c", COMPUTE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 0, ended.stderr
    found = re.fullmatch(r"(\d+)\n", ended.stdout)
    assert found is not None, ended.stdout
    assert int(found.group(1)) * 1024 < MAX_PEAK_BYTES
