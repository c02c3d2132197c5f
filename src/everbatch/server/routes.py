"""The paths of the server and what each does.

Belongs here: path to answer, in reading order. Not here: how an answer is written (answer.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.engine.token_checks import (
    check_min_tokens,
    check_priority,
    check_sampling_ids,
    check_token_ids,
)
from everbatch.server import openapi
from everbatch.server.access_log import note
from everbatch.server.answer import Answering, Prompt, answer_stream, answer_whole
from everbatch.server.api_keys import key_owner
from everbatch.server.channel import Channel
from everbatch.server.choices import Api, ChatApi, CompletionApi, Head
from everbatch.server.encoding import Encoding
from everbatch.server.errors import ApiError, bad_request, from_invalid_request
from everbatch.server.http_body import ClientLeft, beside_loop, read_body
from everbatch.server.protocol import (
    ChatRequest,
    Common,
    CompletionRequest,
    read_chat,
    read_completion,
)
from everbatch.server.request_id import new_answer_id, request_id
from everbatch.server.responses import ResponsesApi
from everbatch.server.responses_fields import ResponsesRequest, read_responses
from everbatch.server.served import Served, check_model
from everbatch.server.side_routes import add_route, add_side_routes
from everbatch.server.spans import trace_headers
from everbatch.server.standing import with_headers
from everbatch.server.tool_choices import ToolChatApi
from everbatch.server.tool_use import ToolUse, tool_use

# What nginx writes for a client that closed its connection; nobody receives it.
CLIENT_CLOSED_REQUEST = 499

Work = Callable[[Request, str], Awaitable[Response]]


def make_router(served: Served) -> APIRouter:
    """Make all routes over one served engine."""
    router = APIRouter()
    routes = _Routes(served)
    for path, work, summary, operation in (
        ("/health", routes.health, "Liveness", openapi.HEALTH),
        ("/ready", routes.ready, "Readiness", openapi.READY),
        ("/version", routes.version, "Version", openapi.VERSION),
        ("/metrics", routes.metrics, "Prometheus metrics", openapi.METRICS),
        ("/debug/events", routes.events, "The last events, as an event log", openapi.EVENTS),
        ("/v1/models", routes.models, "List models", openapi.MODELS),
        ("/v1/models/{model_id:path}", routes.model, "One model", openapi.MODEL),
    ):
        add_route(router, "GET", path, work, summary, operation)
    for path, work, summary, operation in (
        ("/v1/completions", routes.completions, "Continue a prompt", openapi.COMPLETIONS),
        (
            "/v1/chat/completions",
            routes.chat_completions,
            "Answer a conversation",
            openapi.CHAT_COMPLETIONS,
        ),
        (
            "/v1/responses",
            routes.responses,
            "Answer a text or a conversation",
            openapi.RESPONSES,
        ),
    ):
        add_route(router, "POST", path, work, summary, operation)
    add_side_routes(router, served)
    return router


class _Routes:
    def __init__(self, served: Served) -> None:
        self._served = served
        self._encoding = Encoding(served)

    async def health(self) -> Response:
        """200 with an empty body unless the engine is dead: a restart would help, then 503."""
        self._served.engine.check_alive()
        return Response(status_code=HTTPStatus.OK)

    async def ready(self) -> Response:
        """200 with an empty body while requests are taken and steps neither hang nor fail."""
        self._served.engine.check_ready()
        return Response(status_code=HTTPStatus.OK)

    async def version(self) -> Response:
        return _json({"version": self._served.settings.version})

    async def metrics(self) -> Response:
        exposition = self._served.engine.metrics.exposition()
        return Response(exposition, headers={"content-type": CONTENT_TYPE_LATEST})

    async def events(self, request: Request) -> Response:
        """What `everbatch explain URL REQUEST` reads. Written on another thread: it may be long."""
        if key_owner(request.scope).tenant is not None:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "the events are those of all tenants: ask with a key that belongs to none",
                code="forbidden",
            )
        log = await asyncio.to_thread(self._served.engine.recent_events.snapshot())
        return Response(log, media_type="application/x-ndjson")

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        # Not a parameter of this function: the framework would document an answer of its own.
        check_model(self._served, request.path_params["model_id"])
        return _json(self._model())

    async def completions(self, request: Request) -> Response:
        return await _within_borders(request, "cmpl", self._complete)

    async def chat_completions(self, request: Request) -> Response:
        return await _within_borders(request, "chatcmpl", self._chat)

    async def responses(self, request: Request) -> Response:
        return await _within_borders(request, "resp", self._respond)

    async def _complete(self, request: Request, answer_id: str) -> Response:
        settings, encoding = self._served.settings, self._encoding
        body = await self._read(request)
        wanted = await beside_loop(len(body), partial(read_completion, body, settings.max_prompts))
        common = await self._checked(wanted.common, request)
        _check_num_choices(len(wanted.prompts), common.sampling.n, settings.max_choices)
        prompts = []
        for prompt in wanted.prompts:
            token_ids = await encoding.prompt_ids(
                prompt, add_special_tokens=wanted.add_special_tokens
            )
            make = partial(self._echoing, wanted, prompt, token_ids, common.sampling)
            prompts.append(await beside_loop(len(body), make))
        return await self._answer(request, answer_id, CompletionApi(), common, prompts)

    async def _chat(self, request: Request, answer_id: str) -> Response:
        body = await self._read(request)
        wanted = await beside_loop(len(body), partial(read_chat, body))
        use, prompts = await self._conversation(request, wanted, "messages", len(body))
        api = ChatApi() if use.new_finder is None else ToolChatApi(use.new_finder)
        return await self._answer(request, answer_id, api, use.common, prompts)

    async def _respond(self, request: Request, answer_id: str) -> Response:
        body = await self._read(request)
        wanted = await beside_loop(len(body), partial(read_responses, body))
        use, prompts = await self._conversation(request, wanted, "input", len(body))
        api = ResponsesApi(wanted.told, use.new_finder)
        return await self._answer(request, answer_id, api, use.common, prompts)

    async def _conversation(
        self, request: Request, wanted: ChatRequest | ResponsesRequest, field: str, num_bytes: int
    ) -> tuple[ToolUse, list[Prompt]]:
        """Give what tools make of a conversation, checked, and its prompt. field: where the client
        wrote its messages; num_bytes: its whole body."""
        tokenizer = self._served.model.tokenizer
        find_use = partial(tool_use, wanted.common, wanted.messages, wanted.tools, tokenizer, field)
        use = await beside_loop(num_bytes, find_use)
        common = await self._checked(use.common, request, "tools" if use.makes_form else None)
        try:
            token_ids = await self._encoding.chat_ids(
                wanted.messages, wanted.template_variables, use.tools, num_bytes=num_bytes
            )
        except InvalidRequest as error:
            raise bad_request(str(error), field, "invalid_value") from None
        make = partial(self._prompt, token_ids, common.sampling)
        return replace(use, common=common), [await beside_loop(num_bytes, make)]

    async def _checked(
        self, common: Common, request: Request, form_param: str | None = None
    ) -> Common:
        """Check what needs no prompt, and take in what stands in the headers. form_param: the field
        of which the form was made, if it was not one for forms."""
        check_model(self._served, common.model)
        check_sampling_ids(common.sampling, self._served.model.vocab_size)
        policy = self._served.engine.config.policy
        asked = with_headers(common, request.headers, key_owner(request.scope))
        check_priority(asked.priority or 0, policy, "start the server with --policy priority")
        form = common.sampling.structured_outputs
        if form is not None:
            # On another thread, for it may take a second; then it is ready for the engine.
            try:
                await asyncio.to_thread(self._served.model.grammars.check, form)
            except InvalidRequest as error:
                if form_param is None:
                    raise
                message = f"what {form_param} ask for cannot be followed: {error}"
                raise bad_request(message, form_param, "invalid_value") from None
        return asked

    async def _read(self, request: Request) -> bytes:
        self._served.engine.check_accepting()
        body = await read_body(request, self._served.settings.max_body_bytes)
        # Where there is no room a long prompt is refused as cheaply as a short one.
        self._served.engine.limits.check_any(self._served.clock.now_ns())
        return body

    def _echoing(
        self,
        wanted: CompletionRequest,
        prompt: str | tuple[int, ...],
        token_ids: Sequence[int],
        sampling: SamplingParams,
    ) -> Prompt:
        """Check a prompt of a completion, and write it out if it is repeated."""
        made = self._prompt(token_ids, sampling, is_all=wanted.is_prompt_only)
        if not wanted.echo:
            return made
        skips = wanted.common.sampling.skip_special_tokens
        return replace(made, echo=self._encoding.text_of(prompt, skip_special_tokens=skips))

    def _prompt(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        is_all: bool = False,
    ) -> Prompt:
        check_token_ids(token_ids, self._served.model.vocab_size)
        num_left = self._served.engine.max_output_tokens(len(token_ids), sampling.n)
        check_min_tokens(sampling, num_left)
        return Prompt(token_ids, sampling, is_all=is_all)

    async def _answer(
        self,
        request: Request,
        answer_id: str,
        api: Api,
        common: Common,
        prompts: Sequence[Prompt],
    ) -> Response:
        served = self._served
        answering = Answering(
            served=served,
            common=common,
            api=api,
            head=Head(answer_id, served.clock.unix_seconds(), served.model.name),
            prompts=prompts,
            channel=Channel(
                len(prompts) * common.sampling.n, served.settings.max_client_buffer_bytes
            ),
            ids=tuple(dict.fromkeys((answer_id, request_id(request.scope)))),
            trace_headers=trace_headers(request.headers),
        )
        note(request.scope, answering.facts)
        if common.stream:
            return await answer_stream(request, answering)
        return await answer_whole(request, answering)

    def _model(self) -> dict[str, object]:
        return {
            "id": self._served.model.name,
            "object": "model",
            "created": self._served.started_at,
            "owned_by": "everbatch",
            "max_model_len": self._served.engine.config.context_limit,
        }


async def _within_borders(request: Request, kind: str, work: Work) -> Response:
    """Run one request whose answer has an id of its own."""
    answer_id = new_answer_id(request, kind)
    try:
        return await work(request, answer_id)
    except ClientLeft:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except InvalidRequest as error:
        raise from_invalid_request(error) from None


def _check_num_choices(num_prompts: int, n: int, limit: int) -> None:
    if num_prompts * n > limit:
        raise bad_request(
            f"{num_prompts:,} prompts with n={n} are {num_prompts * n:,} choices, at most "
            f"{limit:,} go: lower n or send fewer prompts",
            "n",
            "invalid_value",
        )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
