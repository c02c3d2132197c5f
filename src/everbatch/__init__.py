"""everbatch: LLM serving with continuous batching. One scheduler, two clocks.

Public names, loaded when first used: tools that need no model start without one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everbatch.engine.sampling_params import SamplingParams
    from everbatch.engine.structured_outputs import StructuredOutputsParams
    from everbatch.llm import LLM, CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "SamplingParams":
        from everbatch.engine.sampling_params import SamplingParams

        return SamplingParams
    if name == "StructuredOutputsParams":
        from everbatch.engine.structured_outputs import StructuredOutputsParams

        return StructuredOutputsParams
    if name in ("LLM", "CompletionOutput", "RequestOutput"):
        from everbatch import llm

        return getattr(llm, name)
    raise AttributeError(f"everbatch has no public name {name!r}")
