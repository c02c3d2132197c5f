"""The exception tree of everbatch.

    EverbatchError
    ├── ConfigError            an option has an impossible value, alone or together with another
    ├── InvalidRequest         a request that cannot be served as asked; names the parameter
    ├── ModelLoadError         files missing, broken, or of a kind not supported
    │   └── UnsupportedModel   readable, but a kind or a feature that everbatch does not have
    ├── EventLogError          an event log that cannot be written or read
    ├── ExecutorError          a forward pass failed
    └── InvariantViolation     a belief of ours turned out wrong; carries the facts

Every message says what was wrong, the limit, and what to do about it. Belongs here: errors that
two layers or more share. Not here: refusals of the scheduler, which are values (`Rejection`).
"""


class EverbatchError(Exception):
    """Anything that everbatch raises on purpose."""


class ConfigError(EverbatchError):
    """An option has an impossible value."""


class InvalidRequest(EverbatchError):
    """A request that cannot be served as asked; `param` is the name of the offending field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ModelLoadError(EverbatchError):
    """A model's files are missing, broken, or do not belong together."""


class UnsupportedModel(ModelLoadError):
    """A model that can be read but uses what everbatch does not have; the message names it."""


class EventLogError(EverbatchError):
    """An event log that cannot be written or read."""


class ExecutorError(EverbatchError):
    """A forward pass failed; `request_ids` are those whose rows are known to be the cause."""

    def __init__(self, message: str, request_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class InvariantViolation(EverbatchError):
    """Something that must hold does not: a bug of ours. `facts` says what was seen."""

    def __init__(self, message: str, facts: dict[str, object]) -> None:
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        super().__init__(f"{message} ({told})" if told else message)
        self.facts = facts
