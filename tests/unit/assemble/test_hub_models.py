import errno
import subprocess
import sys

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from everbatch.assemble.model_source import ModelPath, resolve_model
from everbatch.base.errors import ModelLoadError


def test_hub_repository_is_fetched_without_copies_in_other_formats(monkeypatch, tmp_path):
    asked: dict[str, object] = {}
    (tmp_path / "config.json").write_text("{}")

    def snapshot(repo: str, **options: object) -> str:
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)

    assert resolve_model("org/name") == ModelPath(tmp_path, "org/name")
    assert asked == {
        "repo": "org/name",
        "allow_patterns": ["*.json", "*.safetensors", "*.jinja"],
        "ignore_patterns": ["*/*"],
    }


def test_one_file_of_a_hub_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repo, file: str(tmp_path / repo / file)
    )

    found = resolve_model("org/name:m.Q8_0.gguf")

    assert found == ModelPath(tmp_path / "org/name/m.Q8_0.gguf", "org/name:m.Q8_0.gguf")


def test_hub_repository_without_config_says_to_name_a_gguf_file(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))

    with pytest.raises(ModelLoadError, match=r"name one: org/name:FILE\.gguf"):
        resolve_model("org/name")


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "http://127.0.0.1/"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("x", response=RESPONSE), "is gated"),
        (errors.RepositoryNotFoundError("x", response=RESPONSE), "has no repository org/name"),
        (errors.LocalEntryNotFoundError("x"), "hub cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE"),
        (errors.RemoteEntryNotFoundError("x", response=RESPONSE), r"has no file m\.gguf"),
        (errors.HFValidationError("odd name"), "odd name"),
        (errors.HfHubHTTPError("500 Server Error", response=RESPONSE), "500 Server Error"),
        (httpx.ReadTimeout("timed out"), "timed out"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_error_of_the_hub_is_translated(monkeypatch, error, message):
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)

    with pytest.raises(ModelLoadError, match=message):
        resolve_model("org/name:m.gguf")


def test_local_model_does_not_load_the_hub_library():
    code = "import sys, everbatch.assemble.model_source; sys.exit('huggingface_hub' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
