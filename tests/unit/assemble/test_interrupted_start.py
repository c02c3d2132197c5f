"""Ctrl-C while an engine is built: not amid the start of the native kernels."""

import signal
from pathlib import Path
from unittest.mock import patch

import pytest

from everbatch.assemble import real
from everbatch.assemble.options import EngineOptions
from everbatch.kernels.backends import choose_backend


def test_ctrl_c_while_the_kernels_start_waits_until_they_have_started(tmp_path: Path) -> None:
    started = []

    def start(*arguments: object, **options: object) -> object:
        signal.raise_signal(signal.SIGINT)
        started.append(choose_backend("reference", 1))
        return started[0]

    # No such model: whoever went on would be told so.
    options = EngineOptions(model=str(tmp_path / "none.gguf"))
    with patch.object(real, "choose_backend", start), pytest.raises(KeyboardInterrupt):
        real.build_engine(options)

    assert len(started) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
