"""From token ids to an HTTP answer, streamed or whole.

Belongs here: submitting to the engine, waiting, writing, and letting go of the engine's requests
when the client leaves or something fails. Not here: reading bodies, JSON. Called by the routes.

A streamed answer begins (status 200) with its first event, so that whatever goes wrong before the
first token has its own HTTP status; later it is an error event, then the end of the stream.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everbatch.base.units import NS_PER_S
from everbatch.engine.engine import EngineRequest
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.scheduler.request import FinishReason
from everbatch.server.channel import Channel
from everbatch.server.choices import Api, Head, Stream, Streaming, Usage
from everbatch.server.generation import Asked, Choice, Generation
from everbatch.server.http_body import ClientLeft, watch_client
from everbatch.server.live import EndCause
from everbatch.server.logprobs import Logprobs, PromptScores, prompt_entries
from everbatch.server.protocol import Common
from everbatch.server.served import Served
from everbatch.tokenizer.text_stream import TextStream

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request as token ids that the model has, and how it is sampled.

    echo: the text that its choices begin with. is_all: and consist of; what is sampled is dropped.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams
    echo: str = ""
    is_all: bool = False


@dataclass(slots=True)
class Answering:
    """One HTTP request with its engine requests, one a prompt; each gives n choices."""

    served: Served
    common: Common
    api: Api
    head: Head
    prompts: Sequence[Prompt]
    channel: Channel
    ids: tuple[str, ...]
    """The answer's id, and the one that the client gave its request, if it did."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """What came of the trace that the request belongs to."""
    requests: list[EngineRequest] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)

    @property
    def tenant(self) -> str | None:
        return self.common.tenant

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.common.sampling.n

    def prompt_of(self, index: int) -> Prompt:
        """Give the prompt of a choice."""
        return self.prompts[index // self.common.sampling.n]

    def engine_id(self, index: int) -> str:
        """Give the engine's id for a prompt."""
        return self.head.id if len(self.prompts) == 1 else f"{self.head.id}-{index}"

    def submit(self, choices: Sequence[Choice]) -> None:
        """Hand all prompts to the engine, or none. Choices: those of the first prompt first."""
        now_ns, n = self.served.clock.now_ns(), self.common.sampling.n
        submitted = []
        self.requests = [self._engine_request(index, now_ns) for index in range(len(self.prompts))]
        for index, (prompt, request) in enumerate(zip(self.prompts, self.requests, strict=True)):
            generations = [
                self._generation(prompt, choice, sample_id)
                for choice, sample_id in zip(
                    choices[index * n : (index + 1) * n], request.sample_ids, strict=True
                )
            ]
            self.generations += generations
            submitted.append((request, generations))
        self.served.engine.submit(submitted, self.common.max_total_s, self.trace_headers)
        self.served.answers.add(self)

    def let_go(self, cause: EndCause = EndCause.CLIENT) -> None:
        """Abort whatever the engine still has of this request."""
        self.served.answers.remove(self)
        for index in range(len(self.prompts)):
            self.served.engine.abort(self.engine_id(index), FinishReason.ABORT, cause)

    def facts(self) -> dict[str, Any]:
        """Give what the access log says of it."""
        used, error = self.usage(), self.channel.error
        facts: dict[str, Any] = {
            "id": self.head.id,
            "tenant": self.common.tenant,
            "stream": self.common.stream,
            "choices": self.num_choices,
            "prompt_tokens": used.num_prompt_tokens,
            "cached_tokens": used.num_cached_tokens,
            "output_tokens": used.num_output_tokens,
            "finish_reasons": [one.finish_reason for one in self.generations],
            "error": None if error is None else error.code,
        }
        if self.served.settings.log_prompts:
            decode = self.served.model.tokenizer.decode
            facts["prompts"] = [
                decode(one.token_ids, skip_special_tokens=False) for one in self.prompts
            ]
        return facts

    def abort(self) -> bool:
        """End what has not ended, with finish reason abort; gives whether there was any."""
        aborted = [generation.abort() for generation in self.generations]
        for index in range(len(self.prompts)):
            self.served.engine.abort(self.engine_id(index), FinishReason.ABORT)
        return any(aborted)

    def usage(self) -> Usage:
        return Usage(
            sum(len(prompt.token_ids) for prompt in self.prompts),
            sum(generation.num_output_tokens for generation in self.generations),
            sum(generation.num_cached_tokens for generation in self.generations),
        )

    def logprobs(self, index: int) -> Logprobs | None:
        """Make what gathers the log probabilities of a choice."""
        num_top = self.common.sampling.logprobs
        if num_top is None:
            return None
        scores = self._prompt_scores(index) if self.prompt_of(index).echo else None
        return self.api.logprobs(self.served.model.tokenizer, num_top, scores)

    def told_of_prompt(self, index: int) -> dict[str, object]:
        """Give what a choice tells of its prompt, if that was asked for."""
        if self.common.prompt_logprobs is None:
            return {}
        scores = self._prompt_scores(index)
        num_top = self.common.prompt_logprobs
        return {"prompt_logprobs": prompt_entries(self.served.model.tokenizer, scores, num_top)}

    def _prompt_scores(self, index: int) -> PromptScores:
        token_ids = self.prompt_of(index).token_ids
        position = index // self.common.sampling.n

        def scores() -> Sequence[TokenLogprobs | None]:
            known = self.requests[position].prompt_logprobs
            return [None] * (len(token_ids) - 1) if known is None else known

        return PromptScores(token_ids, scores)

    def _generation(self, prompt: Prompt, choice: Choice, sample_id: str) -> Generation:
        engine = self.served.engine
        return Generation(
            choice,
            TextStream(self.served.model.tokenizer, prompt.sampling),
            self.channel,
            lambda reason: engine.abort(sample_id, reason),
            Asked(self.api.prompt_field, self.common.max_wait_s, prompt.is_all),
        )

    def _engine_request(self, index: int, now_ns: int) -> EngineRequest:
        prompt, max_wait_s = self.prompts[index], self.common.max_wait_s
        return EngineRequest(
            id=self.engine_id(index),
            prompt_token_ids=np.asarray(prompt.token_ids, dtype=np.int32),
            num_prompt_tokens=len(prompt.token_ids),
            sampling=prompt.sampling,
            priority=self.common.priority or 0,
            tenant=self.common.tenant or "",
            cache_salt=self.common.cache_salt,
            n=prompt.sampling.n,
            deadline_ns=None if max_wait_s is None else now_ns + int(max_wait_s * NS_PER_S),
        )


async def answer_whole(request: Request, answering: Answering) -> Response:
    """Give the whole answer when the last choice has ended; raises ApiError or ClientLeft."""
    api, channel = answering.api, answering.channel
    choices = [
        api.collect(
            answering.head,
            answering.logprobs(index),
            answering.prompt_of(index).echo,
            partial(answering.told_of_prompt, index),
        )
        for index in range(answering.num_choices)
    ]
    watcher = asyncio.create_task(watch_client(request.receive, channel))
    try:
        answering.submit(choices)
        await channel.wait()
    finally:
        answering.let_go()
        await _cancel(watcher)
    _raise_end(channel)
    body = api.body(answering.head, choices, answering.usage())
    return Response(body, media_type="application/json")


async def answer_stream(request: Request, answering: Answering) -> Response:
    """Give a streamed answer once its first event is there; raises ApiError or ClientLeft."""
    common, channel = answering.common, answering.channel
    stream = answering.api.stream(
        answering.head, Streaming(common.include_usage, common.continuous_usage, answering.usage)
    )
    choices = [
        stream.choice(index, answering.logprobs(index), channel, answering.prompt_of(index).echo)
        for index in range(answering.num_choices)
    ]
    watcher = asyncio.create_task(watch_client(request.receive, channel))
    channel.on_overflow = lambda: answering.let_go(EndCause.SLOW_CLIENT)
    try:
        answering.submit(choices)
        await channel.wait()
        _raise_end(channel)
    except BaseException:  # Cancelled too: whatever ends this, nobody else would let go.
        answering.let_go()
        await _cancel(watcher)
        raise
    return EventStream(answering, stream, watcher)


class EventStream(Response):
    """Writes a channel's bytes as they come, many at once if the client is slow to read."""

    def __init__(self, answering: Answering, stream: Stream, watcher: "asyncio.Task[None]") -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(STREAM_HEADERS)
        self._answering = answering
        self._stream = stream
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        channel = self._answering.channel
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            while chunk := await _next_chunk(channel):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if channel.has_client:
                error = channel.error
                last = self._stream.end() if error is None else self._stream.failed(error)
                await send({"type": "http.response.body", "body": last})
        finally:
            self._answering.let_go()
            await _cancel(self._watcher)


async def _next_chunk(channel: Channel) -> bytes:
    """Give what has come, waiting for it; nothing once all is over."""
    await channel.wait()
    return channel.take() if channel.has_client else b""


def _raise_end(channel: Channel) -> None:
    if not channel.has_client:
        raise ClientLeft
    if channel.error is not None:
        raise channel.error


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))
