"""Errors as OpenAI's API tells them.

Belongs here: the one exception that becomes an error body, and its makers. Not here: where errors
are found. Raised by everything that reads a request, turned into a response by the application.
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from everbatch.base.errors import InvalidRequest

# A message may quote the value that was wrong, and that may be as large as the body.
MAX_MESSAGE_LENGTH = 600
RETRY_AFTER_S = 1


class ApiError(Exception):
    """A request that ends with an error: status, message, and OpenAI's type, param and code.

    leaves_body: the client may still be sending its body, which nobody wants to read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        leaves_body: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = clip(message)
        self.param = None if param is None else clip(param)
        self.code = code
        self.headers = dict(headers or {})
        self.leaves_body = leaves_body

    @property
    def type(self) -> str:
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> bytes:
        """Give the JSON body: {"error": {"message", "type", "param", "code"}}."""
        detail = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": detail})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def from_invalid_request(error: InvalidRequest) -> ApiError:
    return bad_request(str(error), error.param, "invalid_value")


def unavailable(
    message: str, code: str, *, retry_after_s: int = RETRY_AFTER_S, closes: bool = False
) -> ApiError:
    """Make a 503 that asks the client to come back; `closes`: over another connection."""
    headers = {"Retry-After": str(retry_after_s)}
    if closes:
        headers["Connection"] = "close"
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers=headers)


def too_many(message: str, code: str, retry_after_s: int) -> ApiError:
    """Make a 429 that tells the client when to come back."""
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        message,
        code=code,
        headers={"Retry-After": str(retry_after_s)},
    )


def engine_failed(message: str) -> ApiError:
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="engine_error")


def clip(text: str) -> str:
    """Cut a long text in the middle: both its ends tell what it is about."""
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    half = MAX_MESSAGE_LENGTH // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
