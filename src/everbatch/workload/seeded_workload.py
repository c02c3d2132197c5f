"""[workload] as a scenario keeps it: it can be read again with another seed, and told from others.

Called by scenario.py. What the table means is in workload_section.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from everbatch.base.fields import Fields

if TYPE_CHECKING:
    from everbatch.workload.workload_section import Workload

FILE_KEYS = ("trace", "file")
LEAVING_KEYS = ("patience", "impatient", "deadline")
"""Those of [workload] that say when clients go; with retries they change who comes as well."""
MAX_DIGESTED_BYTES = 1 << 20
"""Of the beginning of a file; with its size that tells files of one kind apart."""


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """The table, where its paths start, and what it is with a seed."""

    table: object
    folder: Path
    seed: int
    workload: "Workload"

    @classmethod
    def read(cls, table: object, folder: Path, seed: int) -> "WorkloadSection":
        """Read the table; ConfigError says what is wrong with it."""
        # Imported for a [workload] only: what is written out starts a tenth faster without.
        from everbatch.workload.workload_section import WORKLOAD_KEYS, read_workload

        section = Fields(table, "[workload]", WORKLOAD_KEYS)
        return cls(table, folder, seed, read_workload(section, folder, seed))

    def with_seed(self, seed: int) -> "WorkloadSection":
        """Give the same with another seed."""
        return WorkloadSection.read(self.table, self.folder, seed)

    def digest(self) -> str:
        """Give a digest of table, seed and files: equal where the requests are."""
        facts = {"seed": self.seed, "workload": self._without_paths(self.table)}
        return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def clients_who_leave(self) -> str | None:
        """Say by which keys clients may go before they are served; None: all stay."""
        table = self.table if isinstance(self.table, Mapping) else {}
        told = [f"{key} {table[key]:g}" for key in LEAVING_KEYS if key in table]
        return ", ".join(told) or None

    def with_patience(self) -> "WorkloadSection":
        """Give the same with clients who stay; those who would come again do so all the same."""
        table = self.table if isinstance(self.table, Mapping) else {}
        if table.get("retries"):
            return self
        staying = {key: value for key, value in table.items() if key not in LEAVING_KEYS}
        return replace(self, table=staying)

    def _without_paths(self, value: object) -> object:
        """Give a value with the content of files in place of where they are."""
        if not isinstance(value, Mapping):
            return value
        return {
            key: self._content(item) if key in FILE_KEYS else self._without_paths(item)
            for key, item in value.items()
        }

    def _content(self, name: object) -> list[object]:
        path = self.folder / str(name)
        with path.open("rb") as file:
            start = file.read(MAX_DIGESTED_BYTES)
        return [path.stat().st_size, sha256(start).hexdigest()]
