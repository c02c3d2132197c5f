"""How many files, and so connections, this process may have open.

Called before a server listens.
"""

import resource
from contextlib import suppress


def allow_connections() -> None:
    """Raise the number of files that may be open as far as this process may itself: each connection
    is one, and many systems begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may grant less than it says.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
