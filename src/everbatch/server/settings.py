"""The server's own settings and limits.

Belongs here: what concerns HTTP. Not here: the engine's configuration, what is known of the model
(served.py). Made by whoever assembles the server, before there is a model; read by the application,
its routes and the runner.
"""

from dataclasses import dataclass

from everbatch.base.errors import ConfigError

MEBIBYTE = 1 << 20
MAX_SECONDS = 86_400
"""Beyond a day timers may overflow, and nobody waits that long."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names and limits of one server; raises ConfigError when one is impossible.

    served_model_name is what /v1/models lists and what requests may call the model, None: the name
    under which it was found. max_body_bytes bounds a request's body, max_prompts the prompts in it,
    max_choices the answers to them. max_pending_requests bounds what waits to be handed to the
    engine, not what waits in it. shutdown_grace_s is what running requests get to finish once the
    server is told to stop. status_interval_s is the pause between status lines.
    """

    version: str
    served_model_name: str | None = None
    max_body_bytes: int = 4 * MEBIBYTE
    max_prompts: int = 128
    max_choices: int = 1_024
    max_pending_requests: int = 4_096
    shutdown_grace_s: float = 30.0
    status_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if self.served_model_name == "":
            raise ConfigError("the served model needs a name: give one with --served-model-name")
        for name in ("max_body_bytes", "max_prompts", "max_choices", "max_pending_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.shutdown_grace_s <= MAX_SECONDS:
            raise ConfigError(
                f"--shutdown-grace must lie in [0, {MAX_SECONDS}] seconds, got "
                f"{self.shutdown_grace_s:g}"
            )
        if not 0 < self.status_interval_s <= MAX_SECONDS:
            raise ConfigError(
                f"--status-interval must lie in (0, {MAX_SECONDS}] seconds, got "
                f"{self.status_interval_s:g}"
            )
