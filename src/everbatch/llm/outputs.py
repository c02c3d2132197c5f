"""What `LLM.generate` gives: prompts and their answers, with vLLM's names.

Belongs here: the records. Not here: filling them (llm.py).
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """Of one token in one place: log probability, rank (1: the likeliest), and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One answer; `index` tells the samples of a prompt apart.

    finish_reason: "stop", "length" or "error", and `error` then says why. stop_reason: the stop
    string or stop token id that ended it, if one did. logprobs: if asked for, by token id, for
    each token of the answer: the token itself first, then the likeliest.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what came of it, n answers. `prompt` is None if token ids were given.
    prompt_logprobs: if asked for, of each token of the prompt; the first has none."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
