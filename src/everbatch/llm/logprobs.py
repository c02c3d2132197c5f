"""Log probabilities as `LLM.generate` gives them: vLLM's records, by token id.

Belongs here: making them. Not here: computing (kernels). Used by llm.py.
"""

from collections.abc import Sequence

from everbatch.engine.executor import TokenLogprobs
from everbatch.llm.outputs import Logprob
from everbatch.tokenizer.tokenizer import Tokenizer


def token_logprobs(
    tokenizer: Tokenizer, token_id: int, of_token: TokenLogprobs
) -> dict[int, Logprob]:
    """Give those of one place: the token that came first, then the likeliest."""
    ids = (token_id, *(top_id for top_id, _ in of_token.top))
    texts = {one: tokenizer.decode([one], skip_special_tokens=False, at_start=False) for one in ids}
    told = {token_id: Logprob(of_token.logprob, of_token.rank, texts[token_id])}
    for rank, (top_id, logprob) in enumerate(of_token.top, 1):
        told.setdefault(top_id, Logprob(logprob, rank, texts[top_id]))
    return told


def prompt_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], scores: Sequence[TokenLogprobs | None] | None
) -> list[dict[int, Logprob] | None] | None:
    """Give those of a prompt, one for each token; the first has none. None: nobody asked."""
    if scores is None:
        return None
    told: list[dict[int, Logprob] | None] = [None]
    for token_id, one in zip(token_ids[1:], scores, strict=True):
        told.append(None if one is None else token_logprobs(tokenizer, token_id, one))
    return told
