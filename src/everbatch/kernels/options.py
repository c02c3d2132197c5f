"""What a user may wish of kernels: names and limits, without loading any.

Belongs here: values that the command line shows. Not here: what is chosen (backends.py).
"""

from typing import Literal, TypeAlias, get_args

BackendName: TypeAlias = Literal["auto", "native", "reference"]
BACKEND_NAMES: tuple[BackendName, ...] = get_args(BackendName)

MAX_THREADS = 1024
"""More than a machine has cores; the native kernels refuse more."""
