"""Log probabilities as OpenAI's two APIs show them.

Belongs here: what one token looks like in each. Not here: computing them. A token that is not valid
UTF-8 by itself is shown as OpenAI shows it, "bytes:\\xf0\\x9f", so that nothing is lost or doubled.
The chosen token stands first among the alternatives of completions even when it is not one of the
most likely.
"""

import math
from typing import Any

from everbatch.engine.engine import TokenOutput
from everbatch.tokenizer.tokenizer import Tokenizer

# JSON has no -Infinity, and clients refuse it; OpenAI writes this number.
LOWEST_LOGPROB = -9999.0


def chat_entry(tokenizer: Tokenizer, output: TokenOutput, num_top: int) -> dict[str, Any]:
    """Give one element of a chat choice's logprobs.content."""
    assert output.logprobs is not None
    entry = _chat_token(tokenizer, output.token_id, output.logprobs.logprob)
    top = output.logprobs.top[:num_top]
    entry["top_logprobs"] = [_chat_token(tokenizer, token_id, value) for token_id, value in top]
    return entry


def completion_top(tokenizer: Tokenizer, output: TokenOutput, num_top: int) -> dict[str, float]:
    """Give the alternatives of one token of a completion, most likely first."""
    assert output.logprobs is not None
    chosen = token_text(tokenizer.token_bytes(output.token_id))
    top = {chosen: finite(output.logprobs.logprob)}
    for token_id, value in output.logprobs.top[:num_top]:
        # Two ids may be spelt alike; the more likely one comes first and stays.
        top.setdefault(token_text(tokenizer.token_bytes(token_id)), finite(value))
    return top


def token_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return float(logprob) if math.isfinite(logprob) else LOWEST_LOGPROB


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": token_text(raw), "logprob": finite(logprob), "bytes": list(raw)}
