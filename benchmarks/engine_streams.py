"""Candidate: what http_streams.py asks for, by `LLM.generate`, printed as one JSON line.

    python benchmarks/engine_streams.py MODEL [--kernels auto|native|reference]

A token is there when the step that brought it has returned: then whoever drives the engine has it.
"""

import argparse
import platform
import time
from collections import defaultdict
from importlib import metadata

from offline_workload import print_figures
from streams_workload import (
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Streamed,
    measure,
)

from everbatch import LLM, RequestOutput, SamplingParams
from everbatch.engine.engine import AbortInbox, Engine, StepResult
from everbatch.tokenizer.text_stream import TextStream


class TimedEngine:
    """Notes when each token of an engine was there."""

    def __init__(self, engine: Engine) -> None:
        self.token_ns: defaultdict[str, list[int]] = defaultdict(list)
        self._step = engine.step
        engine.step = self.step  # type: ignore[method-assign]

    def step(self, inbox: AbortInbox | None = None) -> StepResult:
        result = self._step(inbox)
        now_ns = time.perf_counter_ns()
        for output in result.outputs:
            self.token_ns[output.request_id].append(now_ns)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    options = parser.parse_args()
    llm = LLM(
        options.model,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=False,
        kernels=options.kernels,
    )
    engine = TimedEngine(llm.real.engine)

    def generate(prompts: list[list[int]], num_outputs: int) -> list[Streamed]:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        engine.token_ns.clear()
        answers = llm.generate([{"prompt_token_ids": one} for one in prompts], sampling)
        return [_streamed(llm, sampling, one, engine.token_ns[one.request_id]) for one in answers]

    print_figures(
        measure(generate),
        kernels=options.kernels,
        everbatch=metadata.version("everbatch"),
        python=platform.python_version(),
    )


def _streamed(
    llm: LLM, sampling: SamplingParams, answer: RequestOutput, token_ns: list[int]
) -> Streamed:
    """Keep the times of the tokens that completed a piece of text, as a stream has no others."""
    text = TextStream(llm.get_tokenizer(), sampling)
    token_ids = answer.outputs[0].token_ids
    has_text = [bool(text.push(token_id).text) for token_id in token_ids]
    text_ns = [at for at, has in zip(token_ns, has_text, strict=True) if has]
    return Streamed(len(token_ids), text_ns)


if __name__ == "__main__":
    main()
