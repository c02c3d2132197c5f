"""Every pair of option values in few rows: a covering array, made by a greedy search.

Deterministic: the same options give the same rows. Used by the crowds that run under each row.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from random import Random

OPTIONS: dict[str, tuple[object, ...]] = {
    "batching": ("continuous", "static"),
    "policy": ("fcfs", "priority", "aged", "srpt", "vtc"),
    "backfill": ("none", "safe", "greedy"),
    "admission": ("prompt", "now", "peak", "reserve"),
    "watermark": (0.0, 0.3),
    "chunks": ("whole", "capped", "off"),
    "prefill": ("decode first", "share", "aged", "share and aged"),
    "enable_prefix_caching": (False, True),
    "preemption_trigger": ("shortage", "stall"),
    "preemption": ("recompute", "tail", "swap", "swap, tail", "auto", "auto, tail"),
    "preemption_victim": ("newest", "priority", "least_lost", "largest"),
    "max_preemptions": (0, 1, 3),
    "queue": ("unbounded", "bounded"),
    "samples": (1, 3),
}
"""The first value of each is the plainest one."""

NUM_TRIES = 200
"""Rows that are tried for each place in the array."""

Row = Mapping[str, object]
_Pair = tuple[str, object, str, object]


def covering_rows(options: Mapping[str, tuple[object, ...]] = OPTIONS) -> list[Row]:
    """Give rows in which any two values of any two options stand together at least once.

    Static batches preempt nobody and let nobody pass: rows that are static cover no pair of options
    about that, so these pairs are in continuous rows too.
    """
    draw = Random(0)
    missing = dict.fromkeys(_all_pairs(options))
    rows: list[Row] = []
    while missing:
        tries = [_grown_row(options, missing, draw) for _ in range(NUM_TRIES)]
        best = max(tries, key=lambda row: sum(pair in missing for pair in pairs_of(row)))
        for pair in pairs_of(best):
            missing.pop(pair, None)
        rows.append(best)
    return rows


def pairs_of(row: Row) -> Iterator[_Pair]:
    """Give the pairs that a row covers."""
    is_static = row.get("batching") == "static"
    for (name, value), (other, its_value) in combinations(row.items(), 2):
        idle = is_static and name != "batching" and {name, other} & _WITHOUT_STATIC
        if not idle:
            yield name, value, other, its_value


_WITHOUT_STATIC = frozenset(
    {
        "backfill",
        "admission",
        "watermark",
        "preemption_trigger",
        "preemption",
        "preemption_victim",
        "max_preemptions",
    }
)


def _all_pairs(options: Mapping[str, tuple[object, ...]]) -> Iterator[_Pair]:
    for name, other in combinations(options, 2):
        for value in options[name]:
            for its_value in options[other]:
                yield name, value, other, its_value


def _grown_row(
    options: Mapping[str, tuple[object, ...]], missing: Mapping[_Pair, None], draw: Random
) -> Row:
    """Start from a missing pair, and let each other option take the value that covers most."""
    first = draw.choice(list(missing))
    row: dict[str, object] = {first[0]: first[1], first[2]: first[3]}
    if "batching" in options and "batching" not in row and draw.random() < 0.9:
        row["batching"] = "continuous"
    names = [name for name in options if name not in row]
    draw.shuffle(names)
    places = {name: place for place, name in enumerate(options)}
    for name in names:
        values = list(options[name])
        draw.shuffle(values)
        row[name] = max(values, key=lambda value: _gain(places, row, name, value, missing))
    return {name: row[name] for name in options}


def _gain(
    places: Mapping[str, int],
    row: Mapping[str, object],
    name: str,
    value: object,
    missing: Mapping[_Pair, None],
) -> int:
    """Count the missing pairs that a value would cover; a pair names the earlier option first."""
    num_covered = 0
    for other, its_value in row.items():
        pair = (name, value, other, its_value)
        if places[other] < places[name]:
            pair = (other, its_value, name, value)
        num_covered += pair in missing
    return num_covered
