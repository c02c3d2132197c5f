"""From what a user calls a model to files on this machine.

Belongs here: telling apart the names a user may give, and fetching from the hub. Not here: the
embedded default model's download (default_model.py), reading the files (models, tokenizer). Called
by assemble/real.py and the command line.

    None, "SmolLM2-135M-Instruct"    the embedded default model
    a path                           a directory with config.json, or a .gguf file
    "org/name"                       a repository of the Hugging Face hub
    "org/name:file.gguf"             one GGUF file of it
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everbatch.assemble.default_model import DEFAULT_MODEL_NAME, fetch_default_model
from everbatch.base.errors import ModelLoadError
from everbatch.base.paths import exists

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much is done."""

_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+\.gguf))?")
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
_HUB_IGNORED = ["*/*"]  # Copies in other formats, in folders of their own.

_WHAT_TO_GIVE = (
    "give a directory with config.json, tokenizer.json and safetensors, a .gguf file, a name on "
    'the Hugging Face hub ("org/name", or "org/name:file.gguf"), or nothing for the default model '
    f"{DEFAULT_MODEL_NAME}"
)


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model at hand. path: a directory, or a .gguf file. name: what clients call it."""

    path: Path
    name: str


def resolve_model(
    model: str | None, cache_dir: Path | None = None, progress: Progress | None = None
) -> ModelPath:
    """Find `model`, downloading it if need be; `cache_dir` is where the default model is kept.
    Raises ModelLoadError that says what to do."""
    tell = progress or _silence
    if model:
        path = Path(model).expanduser()
        if exists(path):
            return ModelPath(_checked_local(path), _last_part(path) or model)
    if model is None or model == DEFAULT_MODEL_NAME:
        return ModelPath(fetch_default_model(cache_dir, tell), DEFAULT_MODEL_NAME)
    is_file = model.endswith(".gguf") and ":" not in model
    if is_file or model.startswith(("/", "./", "../", "~")):
        raise ModelLoadError(f"there is no file or directory {model}: {_WHAT_TO_GIVE}")
    match = _HUB_NAME.fullmatch(model)
    if match is None:
        raise ModelLoadError(f"{model!r} is not a model: {_WHAT_TO_GIVE}")
    return ModelPath(_fetch_from_hub(match["repo"], match["file"], tell), model)


def _silence(what: str, done: int, total: int) -> None:
    pass


def _checked_local(path: Path) -> Path:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{path} has no config.json: {_gguf_hint(path) or _WHAT_TO_GIVE}")
    elif path.suffix.lower() != ".gguf":
        raise ModelLoadError(f"{path} is neither a .gguf file nor a directory: {_WHAT_TO_GIVE}")
    return path


def _gguf_hint(directory: Path) -> str:
    files = sorted(directory.glob("*.gguf"))
    return f"to serve a GGUF file, name it: {files[0]}" if files else ""


def _last_part(path: Path) -> str:
    """Give a local model's name: what its path ends with, whatever the machine it lies on."""
    name = Path(os.path.abspath(path)).name
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def _fetch_from_hub(repo: str, file: str | None, tell: Progress) -> Path:
    """Give the local copy of a repository, or of one file of it.
    huggingface_hub is imported here because it takes 0.3 s, which a local model need not wait."""
    import httpx
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    what = f"fetching {repo} from the Hugging Face hub"
    tell(what, 0, 1)
    try:
        if file is not None:
            path = Path(hf_hub_download(repo, file))
        else:
            path = Path(
                snapshot_download(repo, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_IGNORED)
            )
    except errors.GatedRepoError as error:
        raise ModelLoadError(
            f"{repo} is gated: accept its terms on its page, then log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"the hub has no repository {repo}, or it is private: check the name, or log in with "
            "`hf auth login`; a local model needs a path that exists"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelLoadError(
            f"{repo} is not on this machine and the hub cannot be reached: check the network and "
            "HF_HUB_OFFLINE, or give a local directory or .gguf file"
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelLoadError(f"{repo} has no file {file}") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, httpx.HTTPError, OSError) as error:
        raise ModelLoadError(f"{repo} cannot be fetched from the hub: {error}") from error
    tell(what, 1, 1)
    return path if file is not None else _checked_snapshot(path, repo)


def _checked_snapshot(path: Path, repo: str) -> Path:
    if not (path / "config.json").is_file():
        raise ModelLoadError(
            f"{repo} has no config.json; if it holds GGUF files, name one: {repo}:FILE.gguf"
        )
    return path
