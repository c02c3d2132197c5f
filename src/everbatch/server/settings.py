"""The server's own settings and limits.

Belongs here: what concerns HTTP. Not here: the engine's configuration, what is known of the model
(served.py). Made by whoever assembles the server, before there is a model; read by the application,
its routes and the runner.
"""

import re
from dataclasses import dataclass

from everbatch.base.errors import ConfigError

MEBIBYTE = 1 << 20
MAX_SECONDS = 86_400
"""Beyond a day timers may overflow, and nobody waits that long."""
MIN_CLIENT_BUFFER_BYTES = 1 << 10
"""Less does not hold an event."""
_METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# Browsers send an origin in small letters, without a path.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/A-Z]+")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names and limits of one server; raises ConfigError when one is impossible.

    served_model_name is what /v1/models lists and what requests may call the model, None: the name
    under which it was found. max_body_bytes bounds a request's body, max_prompts the prompts in it,
    max_choices the answers to them. max_pending_requests bounds what waits to be handed to the
    engine; max_live_requests all that run or wait, max_tenant_requests those of one tenant, 0: any.
    max_client_buffer_bytes bounds what a client that reads its stream too slowly has not read yet.
    shutdown_grace_s is what running requests get to finish once the server is told to stop.
    step_timeout_s is how long a step may take before the server is not ready. status_interval_s is
    the pause between status lines. allowed_origins are the web pages that may ask, "*": all.
    log_prompts: whether the access log, if there is one, has them.
    """

    version: str
    served_model_name: str | None = None
    max_body_bytes: int = 4 * MEBIBYTE
    max_prompts: int = 128
    max_choices: int = 1_024
    max_pending_requests: int = 4_096
    max_live_requests: int = 16_384
    max_tenant_requests: int = 0
    max_client_buffer_bytes: int = MEBIBYTE
    shutdown_grace_s: float = 30.0
    step_timeout_s: float = 20.0
    status_interval_s: float = 10.0
    metrics_prefix: str = "everbatch"
    allowed_origins: tuple[str, ...] = ()
    log_prompts: bool = False

    def __post_init__(self) -> None:
        if self.served_model_name == "":
            raise ConfigError("the served model needs a name: give one with --served-model-name")
        for name in ("max_body_bytes", "max_prompts", "max_choices"):
            self._check_at_least(name, 1)
        self._check_at_least("max_pending_requests", 1)
        self._check_at_least("max_live_requests", 1)
        self._check_at_least("max_tenant_requests", 0)
        self._check_at_least("max_client_buffer_bytes", MIN_CLIENT_BUFFER_BYTES)
        if not 0 <= self.shutdown_grace_s <= MAX_SECONDS:
            raise ConfigError(
                f"--shutdown-grace must lie in [0, {MAX_SECONDS}] seconds, got "
                f"{self.shutdown_grace_s:g}"
            )
        self._check_seconds("--step-timeout", self.step_timeout_s)
        self._check_seconds("--status-interval", self.status_interval_s)
        if not _METRIC_NAME.fullmatch(self.metrics_prefix):
            raise ConfigError(
                "--metrics-prefix must be a letter, then letters, digits and _, got "
                f"{self.metrics_prefix!r}"
            )
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins must be * or scheme://host[:port], got {origin!r}"
                )

    def _check_at_least(self, name: str, low: int) -> None:
        if getattr(self, name) < low:
            raise ConfigError(f"{name} must be at least {low:,}, got {getattr(self, name):,}")

    def _check_seconds(self, flag: str, seconds: float) -> None:
        if not 0 < seconds <= MAX_SECONDS:
            raise ConfigError(f"{flag} must lie in (0, {MAX_SECONDS}] seconds, got {seconds:g}")
