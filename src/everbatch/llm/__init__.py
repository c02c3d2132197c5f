"""`LLM.generate` for scripts: prompts in, texts out, with vLLM's names.

from everbatch import LLM, SamplingParams
llm = LLM()
[answer] = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
print(answer.outputs[0].text)
"""

from everbatch.llm.llm import LLM
from everbatch.llm.outputs import CompletionOutput, Logprob, RequestOutput

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]
