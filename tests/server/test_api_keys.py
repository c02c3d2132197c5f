"""API keys: who has none is refused, nobody gets more than the key allows, nothing tells a key."""

import asyncio
import logging
from hmac import compare_digest

import httpx
import pytest
from server.fakes import async_test, eventually, in_process, make_harness

from everbatch.base.errors import ConfigError
from everbatch.server import api_keys
from everbatch.server.api_keys import MAX_KEY_LENGTH, OPEN_PATHS, ApiKeys, KeyOwner

COMPLETIONS = "/v1/completions"
SECRET = "sk-very-secret"


def keys_of(*lines: str) -> ApiKeys:
    keys = ApiKeys()
    keys.add_lines(lines, "keys.txt")
    return keys


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (bearer(SECRET), 200),
        ({"Authorization": f"bearer  {SECRET} "}, 200),
        ({}, 401),
        (bearer("sk-other"), 401),
        (bearer(SECRET[:-1]), 401),
        (bearer(SECRET + "x"), 401),
        ({"Authorization": f"Basic {SECRET}"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": SECRET}, 401),
        ({"Authorization": b"Bearer \xff\xfe"}, 401),
    ],
    ids=str,
)
def test_a_request_needs_a_key_that_is_known(headers: dict, status: int) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(keys=keys_of(SECRET))) as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)

        assert answer.status_code == status
        if status == 401:
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "x-request-id" in answer.headers
            assert SECRET not in answer.text

    run()


@async_test
async def test_two_keys_in_one_request_are_none() -> None:
    one, other = (("authorization", f"Bearer {key}") for key in (SECRET, "sk-other"))
    async with in_process(make_harness(keys=keys_of(SECRET, "sk-other"))) as client:
        statuses = [
            (await client.get("/v1/models", headers=headers)).status_code
            for headers in ([one, other], [one, one], [("authorization", ""), one])
        ]

    assert statuses == [401, 200, 401]


@pytest.mark.parametrize("given", [SECRET, "sk-of-the-middle", "sk-last", "sk-wrong", ""])
def test_every_key_is_held_against_all_in_constant_time(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(SECRET, "sk-of-the-middle", "sk-last")
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare_digest(one, other)

    monkeypatch.setattr(api_keys, "compare_digest", compare)
    keys.owner(given)

    assert compared == [(32, 32)] * 3


@async_test
async def test_all_but_probes_and_metrics_needs_a_key() -> None:
    harness = make_harness(keys=keys_of(SECRET))
    paths = [*harness.app.openapi()["paths"], "/openapi.json", "/nowhere"]
    async with in_process(harness) as client:
        statuses = {path: (await client.get(path)).status_code for path in paths}

    assert len(paths) > len(OPEN_PATHS)
    assert {path for path, status in statuses.items() if status != 401} == set(OPEN_PATHS)


@async_test
async def test_without_keys_a_header_is_ignored() -> None:
    async with in_process(make_harness(keys=ApiKeys())) as client:
        answer = await client.get("/v1/models", headers=bearer("anything"))

    assert answer.status_code == 200


@async_test
async def test_a_body_that_nobody_may_send_is_not_read() -> None:
    async with in_process(make_harness(keys=keys_of(SECRET))) as client:
        answer = await client.post(COMPLETIONS, content=b"{" * (6 << 20))

    # Not 413: it was refused before its size was looked at.
    assert answer.status_code == 401


@async_test
async def test_a_key_s_tenant_is_that_of_its_requests() -> None:
    harness = make_harness(keys=keys_of("k1 red", "k2"), logs_access=True)
    async with in_process(harness) as client:

        async def ask(key: str, tenant: str | None, header: str = "") -> httpx.Response:
            body = {"prompt": "x", "max_tokens": 1, "tenant": tenant}
            headers = bearer(key) | {"X-Tenant": header}
            return await client.post(COMPLETIONS, json=body, headers=headers)

        good = [await ask("k1", None), await ask("k1", "red"), await ask("k2", "blue")]
        bad = [await ask("k1", "blue"), await ask("k1", None, "blue")]

    assert [answer.status_code for answer in good] == [200, 200, 200]
    assert [answer.status_code for answer in bad] == [400, 400]
    assert "the API key's tenant is 'red'" in bad[0].json()["error"]["message"]
    assert ['"tenant":"red"' in line for line in harness.access[:3]] == [True, True, False]


@async_test
async def test_a_key_s_priority_is_the_best_that_its_requests_get() -> None:
    harness = make_harness(keys=keys_of("k1 red 5", "k2"), policy="priority", max_num_seqs=1)
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
    ended = []
    async with in_process(harness) as client:

        async def ask(name: str, key: str, **more: object) -> httpx.Response:
            body = {"prompt": name, "max_tokens": 2, **more}
            answer = await client.post(COMPLETIONS, json=body, headers=bearer(key))
            ended.append(name)
            return answer

        better = await ask("better", "k1", priority=4)
        blocker = asyncio.create_task(ask("blocker", "k2"))
        await harness.gate.reached()
        asked = (("worse", "k1", {"priority": 6}), ("own", "k1", {}), ("none", "k2", {}))
        tasks = []
        for name, key, more in asked:
            tasks.append(asyncio.create_task(ask(name, key, **more)))
            num_live = 1 + len(tasks)
            await eventually(lambda num=num_live: harness.engine.num_live == num)
        harness.gate.open()
        await asyncio.gather(blocker, *tasks)

    assert better.status_code == 400
    assert "priority is 4, the API key may ask for 5 and above" in better.json()["error"]["message"]
    assert ended == ["better", "blocker", "none", "own", "worse"]


@async_test
async def test_a_tenant_s_key_ends_and_sees_nothing_of_others() -> None:
    harness = make_harness(keys=keys_of("k1 red", "k2 blue", "k3"))
    async with in_process(harness) as client:

        async def abort(key: str) -> list[str]:
            body = {"request_id": "job"}
            answer = await client.post("/abort", json=body, headers=bearer(key))
            return answer.json()["aborted"]

        harness.gate.shut()
        headers = bearer("k1") | {"X-Request-Id": "job"}
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers))
        await harness.gate.reached()
        by_another, by_itself = await abort("k2"), await abort("k1")
        harness.gate.open()
        await runs
        events = [await client.get("/debug/events", headers=bearer(key)) for key in ("k1", "k3")]

    assert (by_another, by_itself) == ([], ["job"])
    assert [answer.status_code for answer in events] == [403, 200]
    assert events[0].json()["error"]["code"] == "forbidden"


def test_no_log_and_no_message_has_a_key(caplog: pytest.LogCaptureFixture) -> None:
    keys = keys_of(SECRET)

    @async_test
    async def run() -> None:
        harness = make_harness(keys=keys, logs_access=True)
        async with in_process(harness) as client:
            for key in (SECRET, SECRET + "x"):
                await client.post(COMPLETIONS, json={"prompt": "x"}, headers=bearer(key))
        assert len(harness.access) == 2
        assert SECRET not in "".join(harness.access)

    with caplog.at_level(logging.DEBUG):
        run()

    assert SECRET not in caplog.text
    assert SECRET not in repr(vars(keys))


def test_a_file_has_keys_tenants_priorities_and_remarks() -> None:
    keys = keys_of("# remark", "", "a", "b red", "c red -7", "  d#1   blue ")

    assert len(keys) == 4
    assert keys.owner("a") == KeyOwner()
    assert keys.owner("b") == KeyOwner("red")
    assert keys.owner("c") == KeyOwner("red", -7)
    assert keys.owner("d#1") == KeyOwner("blue")
    assert keys.owner("d") is None
    assert keys.have_priorities


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("secret red 1 more", "line 2 has 4 words"),
        ("secret red soon", "the priority must be an integer"),
        ("secret red 3000000000", "the priority must be an integer"),
        ("secret " + "t" * 129, "at most 128"),
        ("sécret", "other than ASCII"),
        ("s" * (MAX_KEY_LENGTH + 1), "513 characters, at most 512"),
    ],
)
def test_a_broken_line_is_named_without_its_key(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        keys_of("ok", line)

    assert "line 2" in str(caught.value)
    assert "cret" not in str(caught.value)
    assert "sss" not in str(caught.value)


def test_a_key_of_two_owners_is_refused_and_twice_the_same_is_not() -> None:
    assert len(keys_of("a red", "a red", "s" * MAX_KEY_LENGTH)) == 2
    with pytest.raises(ConfigError, match=r"keys.txt, line 2: the key was given before"):
        keys_of("a red", "a blue")


@async_test
async def test_a_page_of_another_origin_may_ask_if_it_is_allowed() -> None:
    async def preflight(*allowed: str) -> tuple[httpx.Response, httpx.Response]:
        harness = make_harness(keys=keys_of(SECRET), settings={"allowed_origins": allowed})
        page = {"Origin": "https://page.test"}
        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        async with in_process(harness) as client:
            before = await client.options(COMPLETIONS, headers=page | asks)
            answer = await client.post(
                COMPLETIONS, json={"prompt": "x"}, headers=page | bearer(SECRET)
            )
        return before, answer

    (off, plain), (before, answer) = await preflight(), await preflight("https://page.test")
    (other, refused), (every, open_to_all) = await preflight("https://b.test"), await preflight("*")
    allowed = "access-control-allow-origin"

    assert off.status_code == 401
    assert allowed not in plain.headers
    # A browser asks first, and brings no key.
    assert (before.status_code, every.status_code, other.status_code) == (200, 200, 400)
    assert answer.headers[allowed] == "https://page.test"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert open_to_all.headers[allowed] == "*"
    assert allowed not in refused.headers
