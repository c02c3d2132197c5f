"""The server's own settings and limits.

Belongs here: what concerns HTTP. Not here: the engine's configuration. Made by whoever assembles
the server, read by the application, its routes and the runner.
"""

from dataclasses import dataclass

from everbatch.base.errors import ConfigError

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names and limits of one server; raises ConfigError when one is impossible.

    model_name is what /v1/models lists and what requests may call the model, vocab_size how many
    token ids it knows (the tokenizer may know fewer). max_body_bytes bounds a request's body,
    max_prompts the prompts in it, max_choices the answers to them. max_pending_requests bounds what
    waits to be handed to the engine, not what waits in it. shutdown_grace_s is what running
    requests get to finish once the server is told to stop. status_interval_s is the pause between
    status lines.
    """

    model_name: str
    version: str
    vocab_size: int
    max_body_bytes: int = 4 * MEBIBYTE
    max_prompts: int = 128
    max_choices: int = 1_024
    max_pending_requests: int = 4_096
    shutdown_grace_s: float = 30.0
    status_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ConfigError("the served model needs a name: give --served-model-name")
        limits = ("max_body_bytes", "max_prompts", "max_choices", "max_pending_requests")
        for name in ("vocab_size", *limits):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.shutdown_grace_s >= 0:
            raise ConfigError(f"shutdown_grace_s must not be negative, got {self.shutdown_grace_s}")
        if not self.status_interval_s > 0:
            raise ConfigError(f"status_interval_s must be above 0, got {self.status_interval_s}")
