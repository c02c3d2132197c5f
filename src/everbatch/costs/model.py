"""Models: their sizes, typed or counted from a config.json.

Belongs here: how many parameters, layers and heads a model has, as far as the time of a step
depends on them. Not here: networks and their weights (the package models). Read by the models of
step time, by the readers of scenarios and by the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields
from everbatch.costs.counting import count_config
from everbatch.costs.tables import check_sizes, find_table, packaged_tables

MODEL_SIZES = (
    "num_params",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "bytes_per_value",
)


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of one dense model, in counts of values; None for what is not known.

    `head_params` of the parameters are the output head, computed for the rows that sample only;
    `embedding_params` are looked up, neither read as a whole nor multiplied (0 where the head is
    tied to the embedding). Both are 0 where only the sum is known: then all count as layers.
    """

    name: str = ""
    source: str = ""
    num_params: float | None = None
    num_layers: float | None = None
    num_heads: float | None = None
    num_kv_heads: float | None = None
    head_dim: float | None = None
    hidden_size: float | None = None
    bytes_per_value: float | None = None
    head_params: float = 0.0
    embedding_params: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("[model]", {name: getattr(self, name) for name in MODEL_SIZES})

    @property
    def weight_bytes(self) -> float | None:
        """Bytes of all weights; None if it cannot be told."""
        if self.num_params is None or self.bytes_per_value is None:
            return None
        return self.num_params * self.bytes_per_value

    @property
    def flops_per_token(self) -> float | None:
        """2 FLOPs a parameter, a product and a sum; None if it cannot be told."""
        return None if self.num_params is None else 2.0 * self.num_params

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Bytes of one token's keys and values in all layers; None if it cannot be told."""
        kv_bytes = 2.0
        for size in (self.num_layers, self.num_kv_heads, self.head_dim, self.bytes_per_value):
            if size is None:
                return None
            kv_bytes *= size
        return kv_bytes

    def with_sizes(self, sizes: Mapping[str, float]) -> "Model":
        """Give the model with some sizes changed; another sum of parameters is all layers."""
        changed: dict[str, Any] = dict(sizes)
        if "num_params" in changed:
            changed.update(head_params=0.0, embedding_params=0.0)
        return replace(self, **changed)


def known_models() -> list[Model]:
    """Give the models that come with everbatch."""
    tables = packaged_tables("models.toml")
    return [read_model(table, name, f"model {name}") for name, table in tables.items()]


def find_model(name: str, folder: Path = Path()) -> Model:
    """Give the model of that name, or of the config.json, its folder, or the TOML file `name`.

    A path starts at `folder`. ConfigError if there is none, or if it cannot be counted.
    """
    table, title = find_table(name, "models.toml", "model", folder)
    return read_model(table, title, name)


def read_model(table: Mapping[str, object], name: str, where: str) -> Model:
    """Read one model's table: sizes, or `config` with the keys of a config.json."""
    fields = Fields(table, where, ("name", "source", "config", *MODEL_SIZES))
    name, source = fields.text("name", name), fields.text("source", where)
    sizes = {
        size: fields.number(size, 0.0, 0.0, above_low=True)
        for size in MODEL_SIZES
        if size in fields
    }
    if "config" not in fields:
        return Model(name, source, **sizes)
    if sizes:
        raise ConfigError(f"{where} has a config and {', '.join(sizes)}: give one of both")
    return Model(name, source, **count_config(fields.get("config"), where))
