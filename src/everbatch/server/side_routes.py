"""The paths beside the answers: /tokenize, /detokenize and /abort.

Belongs here: path to answer. Not here: reading bodies (side_bodies.py). Used by routes.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from everbatch.base.errors import InvalidRequest
from everbatch.engine.token_checks import check_token_ids
from everbatch.server import openapi
from everbatch.server.api_keys import key_owner
from everbatch.server.encoding import Encoding
from everbatch.server.errors import from_invalid_request
from everbatch.server.http_body import beside_loop, read_body
from everbatch.server.logprobs import token_text
from everbatch.server.served import Served, check_model
from everbatch.server.side_bodies import (
    TokenizeRequest,
    read_abort,
    read_detokenize,
    read_tokenize,
)
from everbatch.server.tool_use import check_tools


def add_side_routes(router: APIRouter, served: Served) -> None:
    """Add them to a router."""
    routes = _SideRoutes(served)
    for path, work, summary, operation in (
        ("/tokenize", routes.tokenize, "Token ids of a text or a conversation", openapi.TOKENIZE),
        ("/detokenize", routes.detokenize, "Text of token ids", openapi.DETOKENIZE),
        ("/abort", routes.abort, "End requests that run or wait", openapi.ABORT),
    ):
        add_route(router, "POST", path, work, summary, operation)


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    work: Callable[..., Any],
    summary: str,
    operation: openapi.Operation,
) -> None:
    """Add one path, described by `operation` alone."""
    router.add_api_route(
        path,
        work,
        methods=[method],
        summary=summary,
        openapi_extra=operation,
        response_class=Response,
    )
    if method == "GET":
        # Probes ask so: `wget --spider` does. What is sent is the head of the same answer.
        router.add_api_route(
            path, work, methods=["HEAD"], include_in_schema=False, response_class=Response
        )


class _SideRoutes:
    def __init__(self, served: Served) -> None:
        self._served = served
        self._encoding = Encoding(served)

    async def tokenize(self, request: Request) -> Response:
        """What a prompt, or the messages of a chat, are in tokens."""
        body = await self._read(request)
        wanted = await beside_loop(len(body), partial(read_tokenize, body))
        check_model(self._served, wanted.model)
        try:
            token_ids = await self._token_ids(wanted, len(body))
        except InvalidRequest as error:
            raise from_invalid_request(error) from None
        strings = None
        if wanted.return_token_strs:
            strings = await beside_loop(len(body), partial(self._strings, token_ids))
        told = {
            "count": len(token_ids),
            "max_model_len": self._served.engine.config.context_limit,
            "tokens": token_ids,
            "token_strs": strings,
        }
        return await beside_loop(len(body), partial(_json, told))

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, special tokens written out."""
        body = await self._read(request)
        wanted = await beside_loop(len(body), partial(read_detokenize, body))
        check_model(self._served, wanted.model)
        try:
            check_token_ids(wanted.tokens, self._served.model.vocab_size, "tokens")
        except InvalidRequest as error:
            raise from_invalid_request(error) from None
        decode = self._served.model.tokenizer.decode
        text = await beside_loop(
            len(body), partial(decode, wanted.tokens, skip_special_tokens=False)
        )
        return _json({"prompt": text})

    async def abort(self, request: Request) -> Response:
        """End answers with what text there is; their finish reason is abort."""
        ids = read_abort(await self._read(request))
        # Whose key is a tenant's ends that tenant's answers alone.
        tenant = key_owner(request.scope).tenant
        return _json({"aborted": self._served.answers.abort(ids, tenant)})

    def _strings(self, token_ids: list[int]) -> list[str]:
        token_bytes = self._served.model.tokenizer.token_bytes
        return [token_text(token_bytes(one)) for one in token_ids]

    async def _token_ids(self, wanted: TokenizeRequest, num_bytes: int) -> list[int]:
        if wanted.messages is None:
            adds = wanted.add_special_tokens
            return list(await self._encoding.prompt_ids(wanted.prompt, add_special_tokens=adds))
        template = self._served.model.tokenizer.chat_template
        check_tools(wanted.messages, wanted.tools, template)
        return list(
            await self._encoding.chat_ids(
                wanted.messages,
                wanted.template_variables,
                wanted.tools,
                num_bytes=num_bytes,
                add_generation_prompt=wanted.add_generation_prompt,
            )
        )

    async def _read(self, request: Request) -> bytes:
        return await read_body(request, self._served.settings.max_body_bytes)


def _json(value: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
