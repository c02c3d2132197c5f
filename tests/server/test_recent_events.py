"""The last events of a running server, and what `everbatch explain URL` makes of them."""

import asyncio

import httpx
from command_line import everbatch
from server.fakes import async_test, in_process, listening, make_harness

from everbatch.base.eventlog import read_events, read_header
from everbatch.base.events import Arrived, Deferred, QuietSteps, StepRan
from everbatch.diagnose.explain import explain
from everbatch.scheduler.config import SchedulerConfig
from everbatch.server.api_keys import ApiKeys, KeyOwner
from everbatch.server.recent_events import RecentEvents

CONFIG = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, num_blocks=4)


def quiet(step: int) -> StepRan:
    return StepRan(step, step, step - 1, 2, 2, 2, (), (), (), (), 1, 0)


def arrival(number: int) -> Arrived:
    return Arrived(number, f"r{number}", 4, 4, 0, "")


def lines_of(recent: RecentEvents) -> list[str]:
    return recent.snapshot()().splitlines(keepends=True)


@async_test
async def test_the_events_of_a_request_are_an_event_log() -> None:
    async with in_process(make_harness()) as client:
        done = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5})
        answer = await client.get("/debug/events")

    assert answer.headers["content-type"] == "application/x-ndjson"
    [life] = explain(answer.text.splitlines(keepends=True), done.json()["id"]).lives
    assert life.end is not None
    assert (life.num_outputs, life.end.kind) == (5, "finished")


@async_test
async def test_explain_asks_a_server_by_its_address() -> None:
    async with listening(make_harness(max_num_seqs=1)) as url:
        body = {"prompt": ["x", "y"], "max_tokens": 4}
        async with asyncio.timeout(30):
            done = await asyncio.to_thread(_post, url, body)
            by_id = await asyncio.to_thread(everbatch, "explain", url, f"{done['id']}-1")
            whole = await asyncio.to_thread(everbatch, "explain", f"{url}/v1")

    assert (by_id.status, by_id.err) == (0, "")
    assert f"request {done['id']}-1: prompt 1 token, max_tokens 4" in by_id.out
    assert "waited (sequence_budget): it needed 1 slot, 0 of 1 were free" in by_id.out
    assert f"slots were held by {done['id']}-0" in by_id.out
    assert f"ask: everbatch explain {url}/v1 {done['id']}-1" in whole.out


@async_test
async def test_explain_takes_what_a_client_sent_as_its_request_s_id() -> None:
    keys = ApiKeys()
    keys.add("k1", KeyOwner(), "a key")
    async with listening(make_harness(keys=keys)) as url, asyncio.timeout(60):

        def ask() -> list[str]:
            headers = {"Authorization": "Bearer k1", "X-Request-Id": "mine.1"}
            bodies = ({"prompt": "x"}, {"prompt": ["y", "z"], "n": 2})
            return [
                httpx.post(f"{url}/v1/completions", json=body, headers=headers).json()["id"]
                for body in bodies
            ]

        first, second = await asyncio.to_thread(ask)
        found = await asyncio.to_thread(everbatch, "explain", url, "mine.1", "--api-key", "k1")
        other = await asyncio.to_thread(everbatch, "explain", url, "mine", "--api-key", "k1")
        without = await asyncio.to_thread(everbatch, "explain", url, "mine.1")

    assert first.startswith("cmpl-mine.1-") and second.startswith("cmpl-mine.1-")
    assert first != second
    told = [line.split(":")[0] for line in found.out.splitlines() if line.startswith("request ")]
    samples = [f"request {second}-{prompt}/{sample}" for prompt in (0, 1) for sample in (0, 1)]
    assert told == [f"request {first}", *samples]
    assert other.status == 2
    assert f"did you mean {first}" in other.err or "such as" in other.err
    assert (without.status, "give one of its keys with --api-key" in without.err) == (2, True)


def _post(url: str, body: dict) -> dict:
    return httpx.post(f"{url}/v1/completions", json=body).json()


def test_what_there_is_no_room_for_is_dropped_and_counted() -> None:
    recent = RecentEvents(CONFIG, max_events=3)
    recent.add([arrival(number) for number in range(5)])
    header, *lines = lines_of(recent)

    assert read_header(header)["dropped"] == 2
    assert [event.id for event in read_events([header, *lines])] == ["r2", "r3", "r4"]


def test_a_run_of_quiet_steps_takes_one_place() -> None:
    recent = RecentEvents(CONFIG, max_events=3)
    waits = Deferred(40, 41, "r1", "sequence_budget", 1, 0)
    recent.add([arrival(1), *map(quiet, range(1, 41))])
    recent.add([waits, *map(quiet, range(41, 51))])

    assert list(read_events(lines_of(recent))) == [
        QuietSteps(40, 1, 0, 40, 2),
        waits,
        QuietSteps(50, 41, 40, 10, 2),
    ]


def test_a_snapshot_is_not_changed_by_what_comes_later() -> None:
    recent = RecentEvents(CONFIG)
    recent.add([arrival(1), quiet(1)])
    write = recent.snapshot()
    recent.add([quiet(2), arrival(2)])

    assert len(write().splitlines()) == 3
    assert len(lines_of(recent)) == 4


def test_explain_says_that_a_server_has_lost_the_beginning(tmp_path) -> None:
    recent = RecentEvents(CONFIG, max_events=1)
    recent.add([arrival(1), arrival(2)])
    path = tmp_path / "log"
    path.write_text("".join(lines_of(recent)), encoding="utf-8")
    answer = everbatch("explain", path, "r2")

    assert "not here are the first 1 event:" in answer.out
