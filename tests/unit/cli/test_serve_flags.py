"""`everbatch serve`: what its own flags become, and what is wrong before a model is loaded."""

from pathlib import Path
from typing import Any

import click
import pytest
from command_line import everbatch

from everbatch.base.errors import ConfigError
from everbatch.cli.serve import command, print_access
from everbatch.cli.server_options import pop_settings, read_keys
from everbatch.server.api_keys import KeyOwner
from everbatch.server.settings import MIN_CLIENT_BUFFER_BYTES, ServerSettings


def settings_of(*flags: str) -> ServerSettings:
    given = dict(click.Context(command).params)
    with command.make_context("serve", [*flags]) as context:
        given |= context.params
    return pop_settings(given)


def test_without_flags_settings_have_their_own_defaults() -> None:
    given = settings_of()

    assert given == ServerSettings(version=given.version)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--shutdown-grace", "5"], "shutdown_grace_s", 5.0),
        (["--shutdown-timeout", "5"], "shutdown_grace_s", 5.0),
        (["--step-timeout", "90.5"], "step_timeout_s", 90.5),
        (["--max-live-requests", "7"], "max_live_requests", 7),
        (["--max-tenant-requests", "3"], "max_tenant_requests", 3),
        (["--max-body-size", "64MiB"], "max_body_bytes", 64 << 20),
        (["--max-prompts", "1"], "max_prompts", 1),
        (["--max-choices", "2"], "max_choices", 2),
        (["--max-client-buffer", "16KiB"], "max_client_buffer_bytes", 16 << 10),
        (["--metrics-prefix", "vllm"], "metrics_prefix", "vllm"),
        (["--log-prompts"], "log_prompts", True),
        (
            ["--allowed-origins", "https://a.test:8443", "--allowed-origins", "*"],
            "allowed_origins",
            ("https://a.test:8443", "*"),
        ),
    ],
    ids=str,
)
def test_a_flag_is_a_setting(flags: list[str], name: str, value: object) -> None:
    assert getattr(settings_of(*flags), name) == value


@pytest.mark.parametrize(
    ("setting", "good", "bad", "words"),
    [
        ("shutdown_grace_s", 0.0, -1.0, "--shutdown-grace must lie in"),
        ("step_timeout_s", 0.1, 0.0, "--step-timeout must lie in"),
        ("step_timeout_s", 86_400.0, 86_401.0, "--step-timeout must lie in"),
        ("status_interval_s", 86_400.0, float("nan"), "--status-interval must lie in"),
        ("max_live_requests", 1, 0, "max_live_requests must be at least 1"),
        ("max_tenant_requests", 0, -1, "max_tenant_requests must be at least 0"),
        ("max_prompts", 1, 0, "max_prompts must be at least 1"),
        ("max_body_bytes", 1, 0, "max_body_bytes must be at least 1"),
        (
            "max_client_buffer_bytes",
            MIN_CLIENT_BUFFER_BYTES,
            MIN_CLIENT_BUFFER_BYTES - 1,
            "max_client_buffer_bytes must be at least 1,024, got 1,023",
        ),
        ("metrics_prefix", "a_1", "1a", "--metrics-prefix"),
        ("metrics_prefix", "a" * 64, "a" * 65, "--metrics-prefix"),
        ("metrics_prefix", "a", "a:b", "--metrics-prefix"),
        ("allowed_origins", ("http://localhost:3000",), ("localhost",), "--allowed-origins"),
        ("allowed_origins", ("*",), ("https://a.test/",), "--allowed-origins"),
    ],
    ids=str,
)
def test_a_setting_has_its_limits(setting: str, good: Any, bad: Any, words: str) -> None:
    assert getattr(ServerSettings("v", **{setting: good}), setting) == good
    with pytest.raises(ConfigError, match=words):
        ServerSettings("v", **{setting: bad})


def test_keys_come_from_flags_the_environment_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("# ours\nthird red 4\n")
    keys = read_keys(("first",), "second", path)

    assert [keys.owner(key) for key in ("first", "second")] == [KeyOwner(), KeyOwner()]
    assert keys.owner("third") == KeyOwner("red", 4)
    assert len(read_keys((), None, None)) == len(read_keys((), "", None)) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# only a remark\n", "has no key in it"),
        ("schlüssel\n".encode(), "other than ASCII characters at byte 4"),
        (b"a red b c\n", "line 1 has 4 words"),
    ],
)
def test_a_key_file_that_lets_nobody_in_is_refused(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_keys((), None, path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--api-key", "two words"], "--api-key number 1 is empty or has spaces"),
        (["--api-key", ""], "--api-key number 1 is empty"),
        (["--api-key-file", "/proc/no_such_file"], "cannot read --api-key-file /proc/no_such_file"),
        (["--log-prompts"], "give --access-log, too"),
        (["--access-log", "/proc/no_such_file"], "check --access-log"),
        (["--allowed-origins", "nonsense"], "--allowed-origins"),
        (["--metrics-prefix", "a-b"], "--metrics-prefix"),
        (["--step-timeout", "0"], "--step-timeout"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_in_a_line_before_a_model_is_looked_for(
    flags: list[str], words: str
) -> None:
    answer = everbatch("serve", "no_such_model", "--port", "0", *flags)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("everbatch: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert "two words" not in answer.err


@pytest.mark.parametrize(
    ("host", "keys", "told"),
    [
        ("127.0.0.1", (), ""),
        ("localhost", (), ""),
        ("0.0.0.0", (), "warning: whoever reaches 0.0.0.0 may ask: give --api-key"),
        ("", (), "warning: whoever reaches this machine may ask: give --api-key"),
        ("0.0.0.0", ("k1", "k2"), "2 API keys: requests without one get 401"),
    ],
)
def test_who_may_ask_is_told_at_start(
    host: str, keys: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_access(read_keys(keys, None, None), host)

    line = click.unstyle(capsys.readouterr().err)
    assert line.startswith(told)
    assert bool(line) == bool(told)


def test_priorities_of_keys_need_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("key red 4\n")
    answer = everbatch("serve", "no_such_model", "--port", "0", "--api-key-file", path)

    assert answer.status == 2
    assert "leave them out or use --policy priority" in answer.err
