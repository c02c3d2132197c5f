"""Who may use the server: keys, and whose they are.

Belongs here: reading keys, comparing them, refusing who has none. Not here: what a tenant may do
(standing.py, scheduler). Installed by the application if there are keys.

A key is kept as its sha256 alone, so that no message, log or traceback can show it, and all digests
are compared in constant time, whether one has fitted or not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from everbatch.base.errors import ConfigError
from everbatch.server.errors import ApiError
from everbatch.server.http_body import respond
from everbatch.server.protocol import MAX_PRIORITY, MAX_TENANT_LENGTH

OPEN_PATHS = ("/health", "/ready", "/version", "/metrics")
"""What tells nothing of any request: probes and Prometheus need no key."""
MAX_KEYS = 10_000
"""Each is compared with every request's: 10,000 take some milliseconds."""
MAX_KEY_LENGTH = 512
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Whose a key is. tenant None: whoever the request names; priority None: any."""

    tenant: str | None = None
    priority: int | None = None
    """The best that its requests may ask for, and what they get if they ask for none."""


class ApiKeys:
    """The keys of a server; none: everybody may come."""

    def __init__(self) -> None:
        self._owners: dict[bytes, KeyOwner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def have_priorities(self) -> bool:
        return any(owner.priority is not None for owner in self._owners.values())

    def add(self, key: str, owner: KeyOwner, where: str) -> None:
        """Take in a key; raises ConfigError, which names `where` it stands and never the key."""
        if len(key) > MAX_KEY_LENGTH:
            raise ConfigError(
                f"{where} has {len(key):,} characters, at most {MAX_KEY_LENGTH} go: shorten it"
            )
        if not _VISIBLE.fullmatch(key):
            raise ConfigError(
                f"{where} is empty or has spaces or other than ASCII characters: HTTP could not "
                "carry it in a header"
            )
        digest = _digest(key)
        if self._owners.get(digest, owner) != owner:
            raise ConfigError(f"{where} was given before, with another tenant or priority")
        if len(self._owners) >= MAX_KEYS:
            raise ConfigError(f"{where} is one key more than the {MAX_KEYS:,} that go")
        self._owners[digest] = owner

    def add_lines(self, lines: Iterable[str], file_name: str) -> None:
        """Take in a file: a line is KEY, KEY TENANT or KEY TENANT PRIORITY, or begins with #."""
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{file_name}, line {number}: the key"
            if len(words) > 3:
                raise ConfigError(
                    f"{file_name}, line {number} has {len(words)} words: write KEY, KEY TENANT or "
                    "KEY TENANT PRIORITY"
                )
            self.add(words[0], _owner(words[1:], f"{file_name}, line {number}"), where)

    def owner(self, given: str) -> KeyOwner | None:
        """Give whose key it is; None if nobody's. Takes equally long for every key."""
        digest = _digest(given)
        found = None
        for known, owner in self._owners.items():
            if compare_digest(known, digest):
                found = owner
        return found


class ApiKeyMiddleware:
    """Lets through what has a key, and what needs none; the routes find the owner in the state."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = _bearer(Headers(scope=scope))
        owner = None if given is None else self._keys.owner(given)
        if owner is None:
            await respond(_unauthorized(given is None))(scope, receive, send)
            return
        scope.setdefault("state", {})["key_owner"] = owner
        await self._app(scope, receive, send)


def key_owner(scope: Scope) -> KeyOwner:
    """Give the owner of the key that a request came with; nobody in particular without keys."""
    owner = scope.get("state", {}).get("key_owner")
    return owner if isinstance(owner, KeyOwner) else KeyOwner()


def _owner(words: list[str], where: str) -> KeyOwner:
    tenant = words[0] if words else None
    if tenant is not None and len(tenant) > MAX_TENANT_LENGTH:
        raise ConfigError(
            f"{where}: the tenant has {len(tenant):,} characters, at most {MAX_TENANT_LENGTH} go"
        )
    if len(words) < 2:
        return KeyOwner(tenant)
    if not re.fullmatch(r"-?\d{1,10}", words[1]) or abs(int(words[1])) > MAX_PRIORITY:
        raise ConfigError(
            f"{where}: the priority must be an integer in [-{MAX_PRIORITY}, {MAX_PRIORITY}], got "
            f"{words[1]!r}"
        )
    return KeyOwner(tenant, int(words[1]))


def _bearer(headers: Headers) -> str | None:
    given = set(headers.getlist("authorization"))
    if len(given) != 1:
        # Of two nobody knows which one who stands before us has looked at.
        return None
    scheme, _, key = given.pop().partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unauthorized(is_missing: bool) -> ApiError:
    what = "the request has no API key, or two" if is_missing else "the API key is not known here"
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        f"{what}: send one of this server's as Authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
        leaves_body=True,
    )
