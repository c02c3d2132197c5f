"""The server that is measured: where it listens, and how a request to it is written.

Belongs here: URLs, header lines. Not here: connections, bodies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A server. `path` is what comes before /v1, without a last slash; mostly nothing."""

    url: str
    host: str
    port: int
    is_tls: bool
    path: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "Target":
        """Read a URL with its scheme, as `base_url` gives it. ConfigError if it is none."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {shown(url)} is no URL ({error})") from error
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigError(
                f"--url {shown(url)} is no URL of a server: write http://HOST:PORT or "
                "https://HOST, perhaps with a path"
            )
        if not _is_header_text(parts.path) or not _is_header_text(parts.netloc):
            raise ConfigError(f"--url {shown(url)} holds characters that no URL has")
        if api_key is not None and not _is_header_text(api_key):
            raise ConfigError("--api-key holds characters that no header can carry")
        return cls(
            url,
            parts.hostname,
            _PORTS[parts.scheme] if port is None else port,
            parts.scheme == "https",
            parts.path.rstrip("/"),
            api_key,
        )

    def message(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Give a whole request: head and body. The caller vouches for its headers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text
