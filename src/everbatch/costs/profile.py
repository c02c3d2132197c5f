"""Profiles: fitted step times as JSON files, with the region they cover and how well they fit.

Belongs here: the format, version 1. Not here: fitting. Written by a calibration, read by clocks of
the kind calibrated.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown
from everbatch.costs.fitted import COUNTS, FittedStepTime, Prices, Region

VERSION = 1
KIND = "linear"
MAX_FILE_BYTES = 1 << 20
MAX_PRICE_NS = 1e15
"""A million seconds; more says nothing more, and a step's time stays finite."""
_PRICES = tuple(price.name for price in fields(Prices))
_NEEDED = ("decode_step", "prompt_step")
_PRICE_OF = {"narrow_tokens": "wide_token", "tile_tokens": "tile"}
"""Numbers of tokens, which are no prices and mean nothing without theirs."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A fit: its prices in nanoseconds, the region seen, where it comes from.

    `errors` are fractions by the measure's name ("itl_mean": 0.011), on what the fit did not see.
    `origin` is for people: logs, model, configuration, the version that fitted.
    """

    prices: Prices
    region: Region
    errors: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    origin: Mapping[str, object] = field(default_factory=dict)

    def step_time(self) -> FittedStepTime:
        """Give the model of step time."""
        return FittedStepTime(self.prices, self.region)


def profile_text(profile: Profile) -> str:
    """Write a profile as JSON; `parse_profile` reads the same profile from it."""
    told = {
        "version": VERSION,
        "kind": KIND,
        "source": profile.source,
        "coefficients": asdict(profile.prices),
        "region": {name: list(seen) for name, seen in profile.region.ranges.items()},
        "errors": dict(profile.errors),
        "origin": dict(profile.origin),
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def read_profile(path: Path) -> Profile:
    """Read a profile; ConfigError says what is wrong with the file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: it is no profile")
        return parse_profile(raw.decode("utf-8-sig"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the profile {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})") from error


def parse_profile(text: str, where: str) -> Profile:
    """Read a profile's text; messages begin with `where`."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error or 'nested too deeply'}") from error
    known = ("version", "kind", "source", "coefficients", "region", "errors", "origin")
    top = Fields(data, where, known)
    for key in ("version", "kind", "coefficients", "region"):
        top.required(key, "it is no profile of everbatch")
    if top.integer("version", None) != VERSION:
        raise top.wrong("version", f"{VERSION}: write the profile anew")
    top.one_of("kind", "", (KIND,))
    return Profile(
        _read_prices(top.get("coefficients"), where),
        _read_region(top.get("region"), where),
        _read_errors(top.get("errors") if "errors" in top else {}, where),
        top.text("source", ""),
        _read_origin(top.get("origin") if "origin" in top else {}, where),
    )


def _read_prices(table: object, where: str) -> Prices:
    section = Fields(table, f"{where}: coefficients", _PRICES)
    for name in _NEEDED:
        section.required(name, "every profile has both fixed parts")
    given: dict[str, Any] = {
        name: _read_price(section, name)
        for name in _PRICES
        if name in section and name not in _PRICE_OF
    }
    sizes = {name: section.integer_or(name, 0) for name in _PRICE_OF}
    for tokens, price in _PRICE_OF.items():
        if sizes[tokens] and price not in given:
            raise ConfigError(f"{where}: coefficients has {tokens} without {price}: what they cost")
    if given.get("tile") and not sizes["tile_tokens"]:
        raise ConfigError(f"{where}: coefficients has tile without tile_tokens: how many it holds")
    return Prices(**given, **sizes)


def _read_price(section: Fields, name: str) -> float:
    price = section.number(name, 0.0, 0.0)
    if price > MAX_PRICE_NS:
        raise section.wrong(name, f"a number from 0 to {MAX_PRICE_NS:g}")
    return price


def _read_region(table: object, where: str) -> Region:
    section = Fields(table, f"{where}: region", COUNTS)
    ranges = {name: _read_range(section, name) for name in COUNTS if name in section}
    return Region(ranges)


def _read_range(section: Fields, name: str) -> tuple[int, int]:
    match section.get(name):
        case [int(low), int(high)] if 0 < low <= high and low is not True:
            return low, high
    raise section.wrong(name, "a list of the least and the most that was seen, from 1")


def _read_errors(table: object, where: str) -> dict[str, float]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: errors is {shown(table)}, it must be an object")
    section = Fields(table, f"{where}: errors", tuple(table))
    return {name: section.number(name, 0.0, -1.0) for name in table}


def _read_origin(table: object, where: str) -> dict[str, object]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: origin is {shown(table)}, it must be an object")
    return table


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")
