"""The files of deploy/ fit the server: what they start runs, what they wait for comes in time."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
from e2e import processes
from e2e.processes import WAIT_S, Server, assert_one_line_error, run, serving, start
from tiny_model import write_model

from everbatch.server.bridge import THREAD_JOIN_S
from everbatch.server.run import FLUSH_S, KEEP_ALIVE_S
from everbatch.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "deploy" / "everbatch.service").read_text(encoding="utf-8")
NGINX = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
README = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
KEY = "sk-deployed"
DEFAULTS = ServerSettings(version="")
MAX_EXPOSURE = 20
"""In tenths, as systemd-analyze counts: at most 2.0 of 10."""
CLOSING_S = FLUSH_S + THREAD_JOIN_S


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def unit_values(key: str) -> list[str]:
    """Give what the unit sets a key to, lines that go on joined."""
    return re.findall(rf"^{key}=(.*)$", UNIT.replace("\\\n", " "), re.MULTILINE)


def seconds(text: str) -> int:
    """Read a time span of systemd or nginx: 60, 90s, 2min."""
    number, unit = re.fullmatch(r"(\d+)(s|min|)", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if unit == "min" else 1)


def command_of_unit(environment: dict[str, str]) -> list[str]:
    """Give ExecStart's words as systemd makes them: $X may be several, or none."""
    [told] = unit_values("ExecStart")
    words: list[str] = []
    for word in told.split():
        if word.startswith("$") and not word.startswith("${"):
            words += shlex.split(environment.get(word[1:], ""))
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], word))
    return words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path):
    unit = tmp_path / "everbatch.service"
    # systemd looks whether the program is there.
    unit.write_text(UNIT.replace("/opt/everbatch/bin/everbatch", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
    )
    closed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit)],
        capture_output=True,
        text=True,
    )
    if "unrecognized option" in closed.stderr:
        pytest.skip("this systemd does not know --offline")

    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    assert closed.returncode == 0, closed.stdout


def test_the_unit_s_command_serves_and_tells_systemd(tmp_path, model, monkeypatch):
    keys, logs = tmp_path / "keys", tmp_path / "logs"
    keys.mkdir()
    logs.mkdir()
    (keys / "keys").write_text(f"{KEY} team\n")
    environment = {
        "MODEL": str(model),
        "OPTIONS": "--port 0 --max-num-seqs 4",
        "CREDENTIALS_DIRECTORY": str(keys),
        "LOGS_DIRECTORY": str(logs),
    }
    program, *arguments = command_of_unit(environment)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setitem(processes.ENVIRON, "NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setitem(processes.ENVIRON, "WATCHDOG_USEC", "100000")
        process = start(*arguments)
        try:
            server = Server(process)
            told = [manager.recv(100)]
            while told.count(b"WATCHDOG=1") < 3 or b"READY=1" not in told:
                told.append(manager.recv(100))
            refused = httpx.get(f"{server.url}/v1/models")
            headers = {"Authorization": f"Bearer {KEY}"}
            served = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert server.stop() == 0
        finally:
            process.kill()
            process.communicate()
    lines = [json.loads(line) for line in (logs / "access.jsonl").read_text().splitlines()]

    assert Path(program).name == "everbatch"
    assert set(told) == {b"READY=1", b"WATCHDOG=1"}
    assert (refused.status_code, served.status_code) == (401, 200)
    assert [line["status"] for line in lines] == [401, 200]


def test_systemd_waits_longer_than_the_server_takes():
    [stop], [watchdog] = unit_values("TimeoutStopSec"), unit_values("WatchdogSec")

    assert seconds(stop) > DEFAULTS.shutdown_grace_s + CLOSING_S
    assert seconds(watchdog) > DEFAULTS.step_timeout_s
    assert unit_values("Restart") == ["on-failure"]
    assert unit_values("Type") == ["notify"]


def test_nginx_has_limits_beyond_the_server_s():
    [body] = re.findall(r"client_max_body_size (\d+)m;", NGINX)
    upstream = NGINX.partition("upstream everbatch {")[2].partition("}")[0]
    [idle] = re.findall(r"keepalive_timeout (\w+);", upstream)

    assert int(body) << 20 > DEFAULTS.max_body_bytes
    # Else nginx would send a request into a connection that is just being closed.
    assert seconds(idle) < KEEP_ALIVE_S


def test_the_image_copies_what_is_there_and_what_is_not_passed_over():
    sources = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINER, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    kept = [rule[1:] for rule in rules if rule.startswith("!")]

    assert {"src", "csrc", "pyproject.toml"} <= set(sources)
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert rules[0] == "*"
    assert sorted(kept) == sorted(sources)
    assert not any(fnmatch(name, rule) for name in kept for rule in rules[1:])


def test_the_image_runs_a_command_of_ours_as_a_user_without_rights():
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINER, re.MULTILINE)
    *_, user = re.findall(r"^USER (\S+)$", CONTAINER, re.MULTILINE)
    command, *arguments = json.loads(entry)
    told = run(*arguments, "--no-such-flag")

    assert command == "everbatch"
    assert user.isdecimal() and int(user) > 0
    # All that comes before it is known.
    assert_one_line_error(told, "No such option '--no-such-flag'")


def test_the_image_s_health_check_tells_a_server_that_is_ready(model):
    [check] = re.findall(r"^HEALTHCHECK .*\n\s+CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    _python, option, program = json.loads(check)

    def status(port: int) -> int:
        command = [sys.executable, option, program.replace(":8000/", f":{port}/")]
        return subprocess.run(command, capture_output=True, timeout=WAIT_S).returncode

    with serving(model) as server:
        port = httpx.URL(server.url).port
        assert port is not None
        while_ready = status(port)
        assert server.stop() == 0
    gone = status(port)

    assert (while_ready, gone) == (0, 1)


def test_kubernetes_has_probes_that_are_there_and_time_to_stop():
    [text] = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    pod = pytest.importorskip("yaml").safe_load(text)
    [container] = pod["containers"]
    paths = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]
    arguments = container["args"]
    grace_s = int(arguments[arguments.index("--shutdown-grace") + 1])
    pre_stop_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])

    assert paths == ["/health", "/ready"]
    assert pod["terminationGracePeriodSeconds"] >= pre_stop_s + grace_s + CLOSING_S
    assert str(container["securityContext"]["runAsUser"]) in CONTAINER
