"""Ctrl-C while an engine is built, or runs, in the main thread.

Belongs here: when an interrupt may take effect. Not here: the server's signals (server.run). Called
by llm and real.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back; the callback that is given raises KeyboardInterrupt if there was one.

    Amid a step it would leave scheduler and executor with different pictures, and amid the start of
    a native module nothing that works. The second one does not wait, and none is lost: the end of
    the block raises it too. Where somebody else looks after signals, or in another thread, nothing
    is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    pressed: list[int] = []

    def note(signal_number: int, frame: FrameType | None) -> None:
        if pressed:
            signal.default_int_handler(signal_number, frame)
        pressed.append(signal_number)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
