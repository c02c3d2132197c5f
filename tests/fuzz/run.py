"""Fuzzes one target: `python tests/fuzz/run.py TARGET --seconds N`.

With atheris, if it is installed, guided by what of everbatch an input runs through; without it by
chance. An input that does not end in a declared error, takes longer than --timeout or more than
--memory is written to --findings, and its error is printed. Exit status 1: there was one.
"""

import argparse
import atexit
import faulthandler
import hashlib
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

try:
    import atheris
except ImportError:
    atheris = None


def main() -> None:
    """Read the command line and fuzz."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=int, default=20, help="seconds of the CPU that one input may take"
    )
    parser.add_argument("--memory", type=int, default=2048, help="MiB that the process may take")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--by-chance", action="store_true", help="do without atheris")
    asked = parser.parse_args()
    guided = atheris is not None and not asked.by_chance
    targets = _targets(guided=guided)
    if asked.target not in targets:
        parser.error(f"there is no target {asked.target}: {', '.join(targets)}")
    fuzzing = Fuzzing(targets[asked.target], asked, guided=guided)
    if guided:
        fuzzing.run_guided()
    else:
        fuzzing.run_by_chance()


def _targets(*, guided):
    if not guided:
        from fuzz.targets import TARGETS

        return TARGETS
    with atheris.instrument_imports(include=["everbatch"]):
        from fuzz.targets import TARGETS
    return TARGETS


class Fuzzing:
    """One run over a target. Findings of one kind, by where they were raised, are kept once."""

    def __init__(self, target, asked, *, guided: bool) -> None:
        from fuzz.mutations import mutated

        self._target = target
        self._asked = asked
        self._mutated = mutated
        self._seeds = target.seeds()
        self._kinds: set[tuple[str, ...]] = set()
        self._end = time.monotonic() + asked.seconds
        self._num_inputs = 0
        self._last = asked.findings / f"{target.name}-last.bin"
        asked.findings.mkdir(parents=True, exist_ok=True)
        bytes_ = asked.memory << 20
        resource.setrlimit(resource.RLIMIT_AS, (bytes_ * 8 if guided else bytes_, -1))
        signal.signal(signal.SIGPROF, _late)

    def run_by_chance(self) -> None:
        draw = random.Random(self._asked.seed)
        while time.monotonic() < self._end:
            self._check(
                self._mutated(draw.choice(self._seeds), draw, self._seeds, self._target.words)
            )
        self._report()

    def run_guided(self) -> None:
        corpus = self._asked.findings / f"corpus-{self._target.name}"
        corpus.mkdir(parents=True, exist_ok=True)
        for seed in self._seeds:
            (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
        arguments = [
            sys.argv[0],
            str(corpus),
            f"-rss_limit_mb={self._asked.memory}",
            f"-seed={self._asked.seed + 1}",
            "-max_len=131072",
            "-verbosity=0",
            f"-artifact_prefix={self._asked.findings}/{self._target.name}-",
        ]
        atheris.Setup(arguments, self._check_until_end, custom_mutator=self._either)
        atheris.Fuzz()

    def _check_until_end(self, data: bytes) -> None:
        if time.monotonic() >= self._end:
            self._report()
        self._check(data)

    def _either(self, data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.4:
            return atheris.Mutate(data, max_size)
        return self._mutated(data, draw, self._seeds, self._target.words)[:max_size]

    def _check(self, data: bytes) -> None:
        self._num_inputs += 1
        # What ends the process from outside of Python leaves this behind.
        self._last.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, self._asked.timeout)
        try:
            self._target.check(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._keep(data, error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _keep(self, data: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [
            f"{frame.filename}:{frame.lineno}" for frame in frames if "everbatch" in frame.filename
        ]
        kind = (type(error).__name__, *ours[-2:])
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        name = f"{self._target.name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
        (self._asked.findings / name).write_bytes(data)
        print(f"finding {name}, {len(data)} bytes:", file=sys.stderr)
        traceback.print_exception(error, limit=-6, file=sys.stderr)

    def _report(self) -> None:
        self._last.unlink(missing_ok=True)
        print(f"{self._target.name}: {self._num_inputs:,} inputs, {len(self._kinds)} findings")
        sys.stdout.flush()
        # libFuzzer takes a SystemExit for a crash; so what is done at the exit is done here.
        atexit._run_exitfuncs()
        os._exit(1 if self._kinds else 0)


class TookLong(Exception):
    """An input took longer than it may."""


def _late(_signal: int, _frame: object) -> None:
    raise TookLong


if __name__ == "__main__":
    faulthandler.enable()
    main()
