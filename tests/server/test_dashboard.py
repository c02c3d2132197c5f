"""The Grafana dashboard: every query names what a running server tells, and the model is one."""

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.fakes import async_test, listening, make_harness

FILE = Path(__file__).parents[2] / "docs" / "grafana" / "everbatch.json"
COLUMNS = 24
MIN_SCHEMA_VERSION = 36
"""Grafana 9's: from it on a data source is named by an object."""
PANEL_TYPES = ("row", "timeseries", "stat", "gauge", "bargauge", "heatmap", "histogram", "table")
BUILT_IN = ("__rate_interval", "__interval", "__range", "__from", "__to", "__all")
FUNCTIONS = ("sum", "max", "min", "avg", "count", "rate", "increase", "histogram_quantile", "by")
METRIC = re.compile(r"\$\{prefix\}:(\w+)(?:\{([^}]*)\})?")
VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@cache
def board() -> dict[str, Any]:
    found = json.loads(FILE.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@cache
def exported(prefix: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Names of samples, each with its type and labels, of a server at which something happened."""
    found: dict[str, tuple[str, frozenset[str]]] = {}

    @async_test
    async def run() -> None:
        harness = make_harness(num_blocks=8, max_model_len=128, settings={"metrics_prefix": prefix})
        async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
            body = {"prompt": ["a" * 30, "b" * 30], "max_tokens": 60, "ignore_eos": True}
            for one in (body, {"prompt": "x" * 600}):
                await client.post("/v1/completions", json=one)
            text = (await client.get("/metrics")).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                kind, labels = found.get(sample.name, (family.type, frozenset()))
                found[sample.name] = (kind, labels | set(sample.labels))

    run()
    return found


@pytest.mark.parametrize("prefix", ["everbatch", "vllm"])
def test_every_query_names_what_a_running_server_tells(prefix: str) -> None:
    known = exported(prefix)
    for expr in queries():
        named = METRIC.findall(expr)
        assert named, expr
        for name, matchers in named:
            assert f"{prefix}:{name}" in known, f"{expr}: no metric {name}"
            labels = known[f"{prefix}:{name}"][1]
            wanted = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
            assert set(wanted) <= labels, f"{expr}: {name} has the labels {sorted(labels)}"


def test_every_query_groups_by_labels_that_are_there() -> None:
    known = exported("everbatch")
    for expr in queries():
        labels = {
            label for name, _ in METRIC.findall(expr) for label in known[f"everbatch:{name}"][1]
        }
        for group in re.findall(r"by\s*\(([^)]*)\)", expr):
            assert {one.strip() for one in group.split(",")} <= labels, expr


def test_every_query_is_well_formed() -> None:
    for expr in queries():
        assert expr.count("(") == expr.count(")"), expr
        assert expr.count("{") == expr.count("}"), expr
        assert set(re.findall(r"\b([a-z_]+)\s*\(", expr)) <= set(FUNCTIONS), expr
        assert set(re.findall(r"\[([^\]]*)\]", expr)) <= {"$__rate_interval"}, expr


def test_rates_are_of_what_only_grows_and_of_all_that_does() -> None:
    known = exported("everbatch")
    for expr in queries():
        rated = set(re.findall(r"rate\(\$\{prefix\}:(\w+)", expr))
        for name, _ in METRIC.findall(expr):
            kind = known[f"everbatch:{name}"][0]
            assert (name in rated) == (kind in ("counter", "histogram")), f"{expr}: a {kind}"


def test_quantiles_are_of_buckets_by_their_bounds() -> None:
    of_buckets = [expr for expr in queries() if "_bucket" in expr]
    assert of_buckets
    for expr in queries():
        assert ("histogram_quantile(" in expr) == ("_bucket" in expr), expr
    for expr in of_buckets:
        quantile = float(re.findall(r"histogram_quantile\(([\d.]+)", expr)[0])
        assert 0 < quantile < 1, expr
        assert all("le" in group for group in re.findall(r"by\s*\(([^)]*)\)", expr)), expr


def test_the_lesson_s_counters_are_shown() -> None:
    shown = " ".join(queries())
    for name in (
        "forward_step_duration_seconds",
        "step_tokens",
        "num_preemptions",
        "recomputed_token_ratio",
        "kv_blocks",
        "num_requests_waiting_by_reason",
        "request_aborted_total",
        "time_to_first_token_seconds",
    ):
        assert name in shown


def test_the_model_has_what_grafana_wants() -> None:
    model = board()

    assert model["schemaVersion"] >= MIN_SCHEMA_VERSION
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", model["uid"])
    assert model["title"]
    assert isinstance(model["version"], int)
    assert {"from", "to"} <= model["time"].keys()
    # A number that a Grafana gave the board would be another board's in the next one.
    assert model.get("id") is None
    ids = [panel["id"] for panel in model["panels"]]
    assert all(type(one) is int and one > 0 for one in ids)
    assert len(set(ids)) == len(ids) > 10


def test_every_panel_has_a_place_of_its_own() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board()["panels"]:
        assert panel["type"] in PANEL_TYPES
        assert panel["title"]
        for cell in _cells(panel["gridPos"]):
            assert cell not in taken, f"{panel['title']} lies over {taken[cell]}"
            taken[cell] = panel["title"]
    tops = [panel["gridPos"]["y"] for panel in board()["panels"]]
    assert all(one <= other for one, other in pairwise(tops))


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    x, y, width, height = (place[name] for name in "xywh")
    assert x >= 0 and y >= 0 and width > 0 and height > 0 and x + width <= COLUMNS
    for column in range(x, x + width):
        for line in range(y, y + height):
            yield column, line


def test_every_panel_asks_the_chosen_prometheus() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["datasource"] == chosen
        assert all(target.get("datasource", chosen) == chosen for target in panel["targets"])
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0


def test_every_variable_that_is_used_is_there() -> None:
    listed = {one["name"]: one for one in board()["templating"]["list"]}
    used = set(VARIABLE.findall(json.dumps(board()["panels"]))) - set(BUILT_IN)

    assert used <= listed.keys()
    assert (listed["datasource"]["type"], listed["datasource"]["query"]) == (
        "datasource",
        "prometheus",
    )
    options = [option["value"] for option in listed["prefix"]["options"]]
    assert options == listed["prefix"]["query"].split(",") == ["everbatch", "vllm"]
    asked = METRIC.findall(json.dumps(listed["model"]["query"]))
    assert [f"everbatch:{name}" in exported("everbatch") for name, _ in asked] == [True]
