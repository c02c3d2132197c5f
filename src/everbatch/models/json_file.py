"""Reads an untrusted JSON object, so that whatever is wrong with it is a ModelLoadError.

Called by weights.py and safetensors_files.py.
"""

import json
from pathlib import Path

from everbatch.base.duplicates import first_twice
from everbatch.base.errors import ModelLoadError
from everbatch.models.file_errors import reading

# config.json has some kilobytes, the index of the largest models some hundred. Python makes twenty
# bytes of one where a file is all brackets.
MAX_JSON_BYTES = 8 << 20


def read_json(path: Path) -> dict[str, object]:
    """The object in the file `path`."""
    with reading(path), path.open("rb") as file:
        size = file.seek(0, 2)
        if size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path}: longer than the limit of {MAX_JSON_BYTES:,} bytes")
        file.seek(0)
        raw = file.read(size)
    return parse_object(raw, str(path))


def parse_object(raw: bytes, what: str) -> dict[str, object]:
    """The JSON object in `raw`; `what` is how errors call it. A key that appears twice is an
    error: readers would disagree on which one counts."""

    def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) != len(pairs):
            twice = first_twice(key for key, _ in pairs)
            raise ModelLoadError(f"{what}: the key {twice!r:.80} appears twice")
        return values

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        # ValueError: not UTF-8, not JSON, or a number with thousands of digits.
        raise ModelLoadError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{what} is not a JSON object")
    return value
