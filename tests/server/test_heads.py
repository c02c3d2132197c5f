"""HEAD gives the head of what GET gives: probes ask so."""

import httpx
import pytest
from server.fakes import MODEL, async_test, listening, make_harness

from everbatch.server.api_keys import ApiKeys, KeyOwner

PATHS = ("/health", "/ready", "/version", "/metrics", "/v1/models", f"/v1/models/{MODEL}")
# What differs from one answer to the next.
OWN = ("date", "x-request-id", "content-length")


@pytest.mark.parametrize("path", [*PATHS, "/v1/models/other", "/debug/events", "/nowhere"])
def test_head_is_the_head_of_get(path: str) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness()
        async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
            get, head = await client.get(path), await client.head(path)
            again = await client.get("/health")

        assert (head.status_code, head.content) == (get.status_code, b"")
        assert "x-request-id" in head.headers
        told, wanted = dict(head.headers), dict(get.headers)
        for name in OWN:
            assert (name in told) == (name in wanted)
            told.pop(name, None)
            wanted.pop(name, None)
        assert told == wanted
        assert again.status_code == 200

    run()


@async_test
async def test_head_needs_a_key_where_get_does_and_no_answer_is_made_by_it() -> None:
    keys = ApiKeys()
    keys.add("k", KeyOwner(), "a key")
    harness = make_harness(keys=keys, logs_access=True)
    async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
        statuses = [(await client.head(path)).status_code for path in ("/ready", "/v1/models")]
        client.headers["authorization"] = "Bearer k"
        statuses += [
            (await client.head(path)).status_code for path in ("/v1/models", "/v1/completions")
        ]

    assert statuses == [200, 401, 200, 405]
    # Of a probe that went well there is no line.
    assert [line.split('"status":')[1][:3] for line in harness.access] == ["401", "200", "405"]


@async_test
async def test_head_of_a_server_that_stops_is_503() -> None:
    harness = make_harness()
    async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
        harness.engine.begin_drain()
        answers = [await client.head("/health"), await client.head("/ready")]

    assert [answer.status_code for answer in answers] == [200, 503]
    assert answers[1].headers["retry-after"] == "1"
