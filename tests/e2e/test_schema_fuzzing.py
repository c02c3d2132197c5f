"""The OpenAPI document is true to a real server: schemathesis finds nothing.

It sends what the document allows and what it does not, to every operation, and holds each answer
against all of its checks: statuses, headers, types of content and schemas as documented, what the
document forbids refused, no 5xx. The draws are the same in every run.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.processes import ENVIRON, WAIT_S, Server, serving
from tiny_model import write_model

TEMPLATE = (
    "{% if tools %}{{ tools | length }} tools, <tool_call> with arguments {% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
KEY = "a-key-of-the-tests"
# A schema does not tell what fits a context or what is a regular expression: 400. 503 is what a
# body asks for that allows no time to wait.
CHECKS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 503]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
EVERYTHING = ("--phases", "coverage,fuzzing,stateful")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), template=TEMPLATE)


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--policy", "priority") as started:
        yield started
        started.wait_until_idle()
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


def assert_nothing_found(directory: Path, url: str, *options: str) -> None:
    (directory / "schemathesis.toml").write_text(CHECKS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    quietly = ("--no-color", "--generation-deterministic", "--suppress-health-check", "all")
    done = subprocess.run(
        [*command, "--checks", "all", "--continue-on-failure", *quietly, *options],
        capture_output=True,
        text=True,
        env=ENVIRON,
        cwd=directory,
        timeout=WAIT_S * 4,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
    assert "Tested: 13" in done.stdout


def test_a_few_drawn_requests_find_nothing(server: Server, tmp_path: Path) -> None:
    assert_nothing_found(tmp_path, server.url, "--phases", "fuzzing", "-n", "8")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_each_bound_and_many_drawn_requests_find_nothing(server: Server, tmp_path: Path) -> None:
    assert_nothing_found(tmp_path, server.url, *EVERYTHING, "-n", "150")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_server_with_keys_is_as_its_document_says(model: Path, tmp_path: Path) -> None:
    with serving(model, "--policy", "priority", "--api-key", KEY) as server:
        key = ("-H", f"Authorization: Bearer {KEY}")
        assert_nothing_found(tmp_path, server.url, *EVERYTHING, "-n", "20", *key)
        assert server.stop() == 0
        assert "Traceback" not in server.told.text
