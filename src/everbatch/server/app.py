"""The application: routes, error bodies, and the engine's life inside the server's.

Belongs here: putting the server together. Not here: listening (run.py). Called by assemble, and by
tests over an engine of their own.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from everbatch.server import openapi
from everbatch.server.access_log import AccessLogMiddleware
from everbatch.server.api_keys import ApiKeyMiddleware, ApiKeys
from everbatch.server.bridge import AsyncEngine
from everbatch.server.errors import ApiError
from everbatch.server.http_body import respond
from everbatch.server.progress import look_again_and_again
from everbatch.server.request_id import HEADER, RequestIdMiddleware, request_id
from everbatch.server.routes import make_router
from everbatch.server.served import Served, ServedModel, ServerClock
from everbatch.server.settings import ServerSettings
from everbatch.server.status_line import print_status

logger = logging.getLogger("everbatch.server")

# What a page's script may read besides the body.
EXPOSED_HEADERS = (HEADER, "retry-after")


def create_app(
    engine: AsyncEngine,
    model: ServedModel,
    settings: ServerSettings,
    clock: ServerClock,
    print_line: Callable[[str], None] | None = None,
    *,
    keys: ApiKeys | None = None,
    log_access: Callable[[str], None] | None = None,
) -> FastAPI:
    """Make the ASGI application. Its lifespan starts the engine's thread and stops it.

    `print_line` gets a status line every settings.status_interval_s while something runs;
    `log_access` a line of the access log for each request. With `keys` there must be one in every
    request.
    """
    served = Served(engine, model, settings, clock, clock.unix_seconds())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        look_s = engine.progress.look_s
        watching = (
            asyncio.create_task(_status(served, print_line)),
            asyncio.create_task(look_again_and_again(engine.look, look_s)),
        )
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
            await engine.stop()

    app = FastAPI(
        title="everbatch",
        version=settings.version,
        description="OpenAI-compatible completions by continuous batching.",
        lifespan=lifespan,
        # Both pages load their scripts from elsewhere; the document itself is served.
        docs_url=None,
        redoc_url=None,
        # A path with a slash too many gets an error that says so, not a redirection without a body.
        redirect_slashes=False,
    )
    # The last one that is added is the first that a request meets.
    has_keys = keys is not None and len(keys) > 0
    if keys is not None and has_keys:
        app.add_middleware(ApiKeyMiddleware, keys=keys)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestIdMiddleware)
    if log_access is not None:
        app.add_middleware(AccessLogMiddleware, clock=clock, write_line=log_access)
    app.include_router(make_router(served))
    app.openapi = cache(partial(openapi.document, app, has_keys=has_keys))  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return app


async def _status(served: Served, print_line: Callable[[str], None] | None) -> None:
    if print_line is not None:
        engine, interval_s = served.engine, served.settings.status_interval_s
        await print_status(lambda: engine.stats, served.clock, interval_s, print_line)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return respond(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: paths and methods that it does not have."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    messages = {
        HTTPStatus.NOT_FOUND: f"there is no {path}: see /openapi.json for the paths of this server",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{path} does not take {method}: see /openapi.json",
    }
    message = messages.get(HTTPStatus(error.status_code), str(error.detail))
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return respond(ApiError(error.status_code, message, code=code, headers=error.headers))


async def _bug(request: Request, _error: Exception) -> Response:
    """Answer what nobody expected. The framework raises it again, so that the log has it.

    It answers outside of all middleware, so the header is set here.
    """
    return respond(
        ApiError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "the server failed",
            code="internal_error",
            headers={HEADER: request_id(request.scope)},
        )
    )
