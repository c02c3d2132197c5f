"""A real nginx in front of a server under test, with the configuration of deploy/.

Only what names the machine is changed: the addresses, the certificate, the logs. It listens on a
socket of the file system, so no port can be taken by somebody else.
"""

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NAME = "llm.example.com"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An nginx that runs."""

    directory: Path
    name: str = NAME
    base_url: str = f"https://{NAME}"

    @property
    def socket(self) -> str:
        return str(self.directory / "socket")

    @property
    def access_log(self) -> Path:
        return self.directory / "everbatch.jsonl"

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.directory / "certificate.pem")

    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self.socket, verify=self.trust())
        return httpx.AsyncClient(transport=transport, base_url=self.base_url)


@contextmanager
def nginx_before(url: str, directory: Path) -> Iterator[Proxy]:
    """Run nginx before the server at `url`; skips the test where there is no nginx."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    proxy = Proxy(directory)
    _write(url, proxy)
    command = [program, "-p", str(directory), "-c", str(directory / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr, checked.stderr
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        # Told when the socket listens.
        lines = iter(process.stderr.readline, "")
        assert any("using the" in line for line in lines), "nginx has ended"
        yield proxy
    finally:
        process.terminate()
        process.communicate()


def _write(url: str, proxy: Proxy) -> None:
    directory = proxy.directory
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    site = CONFIGURATION.read_text(encoding="utf-8")
    for pattern, told in {
        r"127\.0\.0\.1:8000": urlsplit(url).netloc,
        r"listen 443 ssl": f"listen unix:{proxy.socket} ssl",
        r"ssl_certificate \S+;": f"ssl_certificate {certificate};",
        r"ssl_certificate_key \S+;": f"ssl_certificate_key {key};",
        r"/\S+/everbatch\.jsonl": str(proxy.access_log),
    }.items():
        site, count = re.subn(pattern, told, site)
        assert count == 1, pattern
    (directory / "site.conf").write_text(site, encoding="utf-8")
    folders = " ".join(f"{name}_temp_path {directory / name};" for name in TEMPORARY)
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory / 'pid'}; error_log stderr notice;\n"
        f"events {{}}\nhttp {{ {folders}\ninclude {directory / 'site.conf'}; }}\n",
        encoding="utf-8",
    )
