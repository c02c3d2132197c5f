"""What the routes share: the parts that one server is made of.

Belongs here: the records, and the check of the model's name. Not here: making them (app.py,
assemble).
"""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from everbatch.base.clock import Clock
from everbatch.server.bridge import AsyncEngine
from everbatch.server.errors import ApiError
from everbatch.server.live_answers import LiveAnswers
from everbatch.server.settings import ServerSettings
from everbatch.tokenizer.grammars import Grammars
from everbatch.tokenizer.tokenizer import Tokenizer


class ServerClock(Clock, Protocol):
    """The engine's clock, and the date that goes on a response."""

    def unix_seconds(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it: its name, and its text side.

    vocab_size: token ids that the network knows; those of the tokenizer may be fewer.
    """

    name: str
    vocab_size: int
    tokenizer: Tokenizer
    grammars: Grammars


@dataclass(frozen=True, slots=True)
class Served:
    """One server: its engine, the model, its settings and its clock."""

    engine: AsyncEngine
    model: ServedModel
    settings: ServerSettings
    clock: ServerClock
    started_at: int
    answers: LiveAnswers = field(default_factory=LiveAnswers)


def check_model(served: Served, wanted: str | None) -> None:
    """Raise ApiError 404 for a model that is not the served one."""
    name = served.model.name
    if wanted is not None and wanted != name:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"the model {wanted!r} does not exist: this server has {name!r}, or leave model out",
            param="model",
            code="model_not_found",
        )
