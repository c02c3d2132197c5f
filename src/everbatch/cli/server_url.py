"""How a server is named on the command line: `host:port`, or a URL.

Belongs here: telling it from a file, making a base URL of it. Used by the commands that talk to a
running server.
"""

import re
from pathlib import Path

from everbatch.base.paths import exists

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}(/v1)?/?")


def base_url(given: str) -> str:
    """Give the URL that paths are put behind: with a scheme, without a last slash or /v1."""
    with_scheme = given if "://" in given else f"http://{given}"
    return with_scheme.rstrip("/").removesuffix("/v1")


def is_server(given: str) -> bool:
    """Whether a server is meant, not a file: by a URL, or host:port if no file has that name."""
    if given.startswith(("http://", "https://")):
        return True
    return _HOST_AND_PORT.fullmatch(given) is not None and not exists(Path(given))
