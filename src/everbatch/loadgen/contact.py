"""The first requests to a server: who is served, and how many tokens a word is.

Belongs here: what is asked before a run, so that a wrong URL, model or key is an error of one line.
Not here: the run. One request has a short prompt and one a longer one; what differs is the words.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from everbatch.base.errors import EverbatchError
from everbatch.base.fields import shown
from everbatch.loadgen.answer import body_message
from everbatch.loadgen.calls import PATHS, BodyOptions
from everbatch.loadgen.connection import AnswerCut, Collected, ConnectionPool
from everbatch.loadgen.prompts import WORDS, Scale
from everbatch.loadgen.target import Target

NUM_FIRST_WORDS = 8


class NoContact(EverbatchError):
    """The server does not answer as one that can be measured."""


async def served_model(target: Target, pool: ConnectionPool) -> str:
    """Ask which model is served; of several the first. NoContact if none can be told."""
    answer = await _ask(target, pool, target.message("GET", "/v1/models"))
    if answer.status != HTTPStatus.OK:
        raise NoContact(
            f"{target.url} answers {answer.status} to GET /v1/models ({_told(answer)}): give "
            "--model, or another --url"
        )
    try:
        [first, *_] = msgspec.json.decode(answer.body)["data"]
        name = first["id"]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise NoContact(f"{target.url} lists no model under /v1/models: give --model") from error
    if not isinstance(name, str):
        raise NoContact(f"{target.url} lists a model named {shown(name)}: give --model")
    return name


async def counted_scale(target: Target, pool: ConnectionPool, options: BodyOptions) -> Scale | None:
    """Have the server count words; None if it does not say how many tokens a prompt has."""
    few, many = WORDS[:NUM_FIRST_WORDS], (*WORDS[:NUM_FIRST_WORDS], *WORDS)
    less = await first_answer(target, pool, options, few)
    more = await first_answer(target, pool, options, many)
    if less is None or more is None or more <= less:
        return None
    per_word = (more - less) / (len(many) - len(few))
    return Scale(per_word, less - per_word * len(few))


async def first_answer(
    target: Target, pool: ConnectionPool, options: BodyOptions, words: Sequence[str]
) -> int | None:
    """Ask for one token; gives the prompt's tokens if the server counts them. NoContact if it
    refuses."""
    body = options.body(" ".join(words), 1, stream=False)
    path = PATHS[options.endpoint]
    answer = await _ask(target, pool, target.message("POST", path, body))
    if answer.status != HTTPStatus.OK:
        raise NoContact(
            f"{target.url} answers {answer.status} to a first request for {shown(options.model)} "
            f"at {path}: {_told(answer)}"
        )
    try:
        count: Any = msgspec.json.decode(answer.body)["usage"]["prompt_tokens"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return count if type(count) is int and count > 0 else None


async def _ask(target: Target, pool: ConnectionPool, message: bytes) -> Collected:
    answer = Collected()
    try:
        await pool.carry(message, answer)
    except (OSError, AnswerCut) as error:
        raise NoContact(
            f"no server answers at {target.url} ({str(error) or type(error).__name__}): start one "
            "with `everbatch serve`, or give its --url"
        ) from error
    return answer


def _told(answer: Collected) -> str:
    return body_message(answer.body) or "without a reason"
