"""The coarse operations of a forward pass: what a network calls and every backend offers.

Each operation covers as much of a layer as a backend could fuse, so that little Python runs per
layer. Belongs here: the protocols. Not here: how anything is computed (reference.py is the
specification) and what a backend is built from (weights.py). Called by models; implemented by the
backends.

    T tokens, R logit rows, L layers, H query heads, H_kv key-value heads, D head_dim
"""

from typing import Any, Protocol, TypeAlias

from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import SampledTokens, SamplingRows
from everbatch.kernels.weights import NetworkShape, NetworkWeights

# An array of a backend's own kind and element type, handed from one operation to the next and
# looked into by nobody else.
Tensor: TypeAlias = Any


class StepKernels(Protocol):
    """The operations of one forward pass over one batch, called in the order given here: embed, the
    four of each layer from 0 to L-1, logits or tokens. What depends on the batch alone is computed
    once. A backend may put off what is asked for until something is to be looked at."""

    def embed(self) -> Tensor:
        """Give hidden [T, hidden]: the embedding of every input id."""

    def norm_qkv_rope_write(self, layer: int, hidden: Tensor) -> Tensor:
        """Give the queries [T, H, D] of this layer, and write its keys and values to their slots.
        RMS norm, q/k/v products, biases, q/k norm per head, rotation; `hidden` stays as it is."""

    def paged_attention(self, layer: int, queries: Tensor) -> Tensor:
        """Give [T, H * D]: each token attends to its row's context up to its own position.
        Scores are scaled by D ** -0.5; query head h reads key-value head h // (H / H_kv)."""

    def project_add(self, layer: int, attended: Tensor, hidden: Tensor) -> Tensor:
        """Give hidden plus the output projection of `attended`; may write it into `hidden`."""

    def norm_mlp_add(self, layer: int, hidden: Tensor) -> Tensor:
        """Give hidden plus down(silu(gate(n)) * up(n)), n its RMS norm; may write into `hidden`."""

    def norm_logits(self, hidden: Tensor) -> Floats:
        """Give the logits [R, vocab] float32 of the batch's logit_rows, after the final norm."""

    def norm_sample(self, hidden: Tensor, logits_of: Int32s, rows: SamplingRows) -> SampledTokens:
        """Give what sampling.sample gives for `rows` on the rows `logits_of` of the logits, each an
        index into R; logits that nobody looks at need not be made."""


class Kernels(Protocol):
    """A backend that holds one network's packed weights."""

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        """Give empty storage in this backend's element type."""

    def max_workspace_bytes(self, num_tokens: int, context_len: int) -> int | None:
        """Give the most memory for intermediate results, of batches of so many tokens in contexts
        of this length; None where it is not known."""

    def begin_step(self, batch: PackedBatch, kv: KVStorage) -> StepKernels:
        """Give the operations of one forward pass over `batch`."""


class KernelsBackend(Protocol):
    """What builds Kernels, once for a network; the class of a backend is one."""

    def __call__(self, shape: NetworkShape, weights: NetworkWeights) -> Kernels:
        """Pack the weights in the layout that this backend computes with."""
