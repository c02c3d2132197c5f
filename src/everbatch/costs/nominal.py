"""The nominal model of step time: weights are read once, every token meets every parameter twice.

Nothing else: no attention, no KV cache, no host, no efficiency. It shows when a step turns from
memory-limited to compute-limited; it predicts no measured time. The full model is in roofline.py.
"""

from everbatch.base.units import NS_PER_S
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.needs import needed
from everbatch.costs.terms import Term
from everbatch.costs.work import StepWork, TokensAlone

_PURPOSE = "the nominal model"


class NominalStepTime(TokensAlone):
    """max(weight bytes / memory bandwidth, 2 FLOPs per parameter and token / FLOP rate)."""

    def __init__(self, device: Device, model: Model) -> None:
        """Take what is needed of both; ConfigError names what they lack."""
        flops, bandwidth = needed(device, ("flops", "memory_bandwidth"), _PURPOSE)
        num_params, bytes_per_value = needed(model, ("num_params", "bytes_per_value"), _PURPOSE)
        self.weight_bytes = num_params * bytes_per_value
        self.flops_per_token = 2.0 * num_params
        self._weights_s = self.weight_bytes / bandwidth
        self._token_s = self.flops_per_token / flops
        # A step takes at least one nanosecond.
        self._weights_ns = max(1.0, self._weights_s * NS_PER_S)
        self._token_ns = self._token_s * NS_PER_S

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        compute_ns = self._token_ns * (work.num_decodes + work.prefill_tokens)
        return round(max(self._weights_ns, compute_ns))

    def terms(self, work: StepWork) -> list[Term]:
        """Give the one term that there is."""
        return [
            Term(
                name="weights",
                formula="max(params × bytes / memory bandwidth, 2 × params × tokens / FLOP rate)",
                bytes=self.weight_bytes,
                flops=self.flops_per_token * work.num_tokens,
                transfer_s=self._weights_s,
                compute_s=self._token_s * work.num_tokens,
                in_nominal=True,
            )
        ]
