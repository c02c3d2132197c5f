"""A server is named in the same ways whatever command talks to it."""

from pathlib import Path

import pytest

from everbatch.cli.server_url import base_url, is_server


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "http://localhost"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://host:1/", "http://host:1"),
        ("https://host/v1/", "https://host"),
        ("https://host/behind/a/proxy/v1", "https://host/behind/a/proxy"),
    ],
)
def test_base_url_has_a_scheme_and_no_version(given: str, url: str) -> None:
    assert base_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "http://host",
        "https://host/v1",
        "localhost:8000",
        "10.0.0.7:80/v1",
        "[::1]:8000",
        "a-b.c:1/",
    ],
)
def test_server_is_told(given: str) -> None:
    assert is_server(given)


@pytest.mark.parametrize(
    "given", ["events.jsonl", "logs/events", "-", "C:\\log", "host:port", "host:123456", "a:1/log"]
)
def test_other_names_are_files(given: str) -> None:
    assert not is_server(given)


def test_file_that_looks_like_a_server_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_server("log:1")

    Path("log:1").touch()

    assert not is_server("log:1")
