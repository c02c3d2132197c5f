"""When a process has been silent, or has stood still, for too long: both sides of each limit."""

import pytest

from everbatch.assemble.supervised import MOVED, READY, STILL
from everbatch.assemble.watchdog import (
    DEFAULT_TIMEOUT_S,
    LOOK_S,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    Limits,
    Watchdog,
)
from everbatch.base.errors import ConfigError
from everbatch.server.settings import ServerSettings


def look(watchdog: Watchdog, seconds: float, signs: bytes = b"") -> None:
    """Let so much time pass, hearing these signs at each look."""
    for _ in range(int(seconds / LOOK_S)):
        watchdog.heard(signs)
        watchdog.look()


@pytest.mark.parametrize("signs", [b"", STILL, STILL + STILL, READY])
def test_process_that_has_not_moved_for_longer_than_its_limit_hangs(signs: bytes) -> None:
    watchdog = Watchdog(Limits(5.0))
    look(watchdog, 5.0, signs)
    at_the_limit = watchdog.still_s
    look(watchdog, LOOK_S, signs)

    assert (at_the_limit, watchdog.still_s) == (None, 5.0 + LOOK_S)


@pytest.mark.parametrize("signs", [MOVED, STILL + MOVED, MOVED + STILL])
def test_one_move_is_enough(signs: bytes) -> None:
    watchdog = Watchdog(Limits(5.0))
    look(watchdog, 5.0, STILL)
    watchdog.heard(signs)
    look(watchdog, 5.0, STILL)

    assert watchdog.still_s is None


def test_without_a_limit_nobody_hangs_but_silence_is_seen() -> None:
    watchdog = Watchdog(Limits(0.0, silent_s=2.0))
    look(watchdog, 1_000.0)

    assert (watchdog.still_s, watchdog.silent_s) == (None, 1_000.0)


def test_silence_ends_with_any_sign() -> None:
    watchdog = Watchdog(Limits(silent_s=2.0))
    look(watchdog, 2.0)
    at_the_limit = watchdog.silent_s
    look(watchdog, LOOK_S)
    beyond = watchdog.silent_s
    watchdog.heard(STILL)

    assert (at_the_limit, beyond, watchdog.silent_s) == (None, 2.0 + LOOK_S, None)


@pytest.mark.parametrize("timeout_s", [0.0, MIN_TIMEOUT_S, DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S])
def test_limits_that_can_be_held(timeout_s: float) -> None:
    assert Limits(timeout_s).timeout_s == timeout_s


@pytest.mark.parametrize("timeout_s", [-1.0, MIN_TIMEOUT_S - 0.1, MAX_TIMEOUT_S + 1, float("nan")])
def test_limits_that_cannot_be_held_are_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="--watchdog-timeout must be 0"):
        Limits(timeout_s)


def test_readiness_ends_long_before_the_process_does() -> None:
    assert ServerSettings("v").step_timeout_s * 4 < DEFAULT_TIMEOUT_S
