"""`check`: a belief that stays in production and carries the facts when it turns out wrong.

`assert` is for what we can prove; `check` for what we believe (style of SQLite's ALWAYS).
"""

from everbatch.base.errors import InvariantViolation


def check(condition: bool, message: str, **facts: object) -> None:
    """Raise InvariantViolation with the facts unless `condition` holds."""
    if not condition:
        raise InvariantViolation(message, facts)
