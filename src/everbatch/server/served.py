"""What the routes share: the parts that one server is made of.

Belongs here: the record. Not here: making it (app.py).
"""

from dataclasses import dataclass
from typing import Protocol

from everbatch.base.clock import Clock
from everbatch.server.bridge import AsyncEngine
from everbatch.server.settings import ServerSettings
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.tokenizer import Tokenizer


class ServerClock(Clock, Protocol):
    """The engine's clock, and the date that goes on a response."""

    def unix_seconds(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Served:
    """One server: its engine, its text side, its settings and its clock."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    settings: ServerSettings
    clock: ServerClock
    started_at: int
