"""X-Request-Id: every answer brings one back, whatever the answer is."""

import asyncio
import re

import httpx
import pytest
from server.fakes import Harness, async_test, in_process, make_harness

from everbatch.diagnose.explain import NUM_TAIL_DIGITS
from everbatch.scheduler.config import TenantConfig
from everbatch.server.request_id import MAX_REQUEST_ID_LENGTH

COMPLETIONS = "/v1/completions"
MINE = {"X-Request-Id": "mine-1"}


async def ask(
    harness: Harness, path: str, body: dict[str, object] | None, headers: dict[str, str]
) -> httpx.Response:
    async with in_process(harness) as client:
        if body is None:
            return await client.get(path, headers=headers)
        return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models", None, 200),
        ("/v1/models/toy", None, 200),
        ("/health", None, 200),
        ("/ready", None, 200),
        ("/metrics", None, 200),
        ("/debug/events", None, 200),
        (COMPLETIONS, {"prompt": "x", "stream": True}, 200),
        (COMPLETIONS, {"prompt": "x", "top_p": 7}, 400),
        ("/v1/models/other", None, 404),
        (COMPLETIONS, {"prompt": "x", "model": "other"}, 404),
        ("/nowhere", None, 404),
        (COMPLETIONS, None, 405),
        (COMPLETIONS, {"prompt": "x" * (5 << 20)}, 413),
    ],
)
def test_given_id_comes_back_with(path: str, body: dict[str, object] | None, status: int) -> None:
    @async_test
    async def run() -> None:
        answer = await ask(make_harness(), path, body, MINE)

        assert answer.status_code == status
        assert answer.headers.get_list("x-request-id") == ["mine-1"]

    run()


@async_test
async def test_given_id_comes_back_with_too_many_requests() -> None:
    harness = make_harness(tenants={"t": TenantConfig(1.0, max_requests_per_minute=1)})
    async with in_process(harness) as client:
        body = {"prompt": "x", "tenant": "t"}
        await client.post(COMPLETIONS, json=body)
        refused = await client.post(COMPLETIONS, json=body, headers=MINE)

    assert refused.status_code == 429
    assert refused.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("path", ["/ready", COMPLETIONS])
def test_given_id_comes_back_with_unavailable(path: str) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness()
        async with in_process(harness) as client:
            harness.engine.begin_drain()
            refused = await client.request(
                "GET" if path == "/ready" else "POST", path, json={"prompt": "x"}, headers=MINE
            )

        assert refused.status_code == 503
        assert refused.headers["x-request-id"] == "mine-1"

    run()


@async_test
async def test_given_id_comes_back_with_a_failure_that_nobody_expected() -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    harness = make_harness()
    harness.app.add_api_route("/broken", fail)
    transport = httpx.ASGITransport(harness.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/broken", headers=MINE)

    assert answer.status_code == 500
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


@async_test
async def test_without_one_it_is_the_answer_s() -> None:
    answer = await ask(make_harness(), COMPLETIONS, {"prompt": "x"}, {})

    assert answer.headers["x-request-id"] == answer.json()["id"]


@pytest.mark.parametrize(
    ("given", "is_part"),
    [("a", True), ("A-1.b_c:9", True), ("i" * 128, True), ("a/0", False), ("a$b", False)],
)
def test_a_plain_one_is_part_of_the_answer_s_id(given: str, is_part: bool) -> None:
    @async_test
    async def run() -> None:
        answer = await ask(make_harness(), COMPLETIONS, {"prompt": "x"}, {"X-Request-Id": given})
        answer_id = answer.json()["id"]

        assert answer.headers["x-request-id"] == given
        assert answer_id.startswith(f"cmpl-{given}-") == is_part
        tail = answer_id.rpartition("-")[2]
        assert re.fullmatch(r"[0-9a-f]+", tail)
        assert len(tail) == (NUM_TAIL_DIGITS if is_part else 32)

    run()


@async_test
async def test_two_requests_of_one_id_at_once_are_two() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        answers = await asyncio.gather(
            *(client.post(COMPLETIONS, json={"prompt": "x"}, headers=MINE) for _ in range(2))
        )

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.json()["id"] for answer in answers}) == 2


@async_test
async def test_refused_completion_has_the_id_that_its_answer_would_have_had() -> None:
    answer = await ask(make_harness(), COMPLETIONS, {"prompt": "x", "top_p": 7}, {})

    assert answer.status_code == 400
    assert answer.headers["x-request-id"].startswith("cmpl-")


@async_test
async def test_what_has_no_answer_s_id_gets_one_of_its_own() -> None:
    async with in_process(make_harness()) as client:
        ids = [(await client.get("/v1/models")).headers["x-request-id"] for _ in range(2)]

    assert all(one.startswith("req-") for one in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("i" * MAX_REQUEST_ID_LENGTH, True),
        ("i" * (MAX_REQUEST_ID_LENGTH + 1), False),
        ("two words", False),
        ("", False),
    ],
)
def test_only_a_visible_id_within_the_limit_comes_back_whole(given: str, kept: bool) -> None:
    @async_test
    async def run() -> None:
        answer = await ask(make_harness(), "/version", None, {"X-Request-Id": given})

        assert (answer.headers["x-request-id"] == given) == kept

    run()
