"""Many clients of the default model at once, and many that vanish: nobody's text changes."""

import asyncio
import random
from collections.abc import Iterator

import openai
import pytest
from e2e.processes import WAIT_S, Server, serving

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
SUBJECTS = [
    "the sea",
    "a small town",
    "winter",
    "an old clock",
    "the number seven",
    "bread",
    "dogs",
]
OPENINGS = ["Tell me about {}.", "{} is", "Once upon a time {}", "Why {}?", "Q: {}\nA:"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # A pool in which the crowd has to share: some wait, some are preempted.
    with serving("--block-size", "4", "--num-blocks", "100", "--admission", "now") as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


def prompts(count: int) -> list[str]:
    """Different ones of 3 to some 60 tokens, some with equal beginnings of several blocks."""
    made = []
    for number in range(count):
        text = OPENINGS[number % 5].format(SUBJECTS[number % 7])
        shared = "You are a helpful and very patient assistant. " * (3 * (number % 3 == 0))
        made.append(f"{shared}{text} {number}" if number % 2 else f"{shared}{text}")
    return made


def client_of(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    )


async def read_stream(
    client: openai.AsyncOpenAI, prompt: str, max_tokens: int, leave_after: int | None = None
) -> str:
    """Give the streamed text; `leave_after` that many chunks the connection is closed."""
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True
    )
    parts: list[str] = []
    async with stream:
        async for chunk in stream:
            if len(parts) == leave_after:
                break
            parts.append(chunk.choices[0].text)
    return "".join(parts)


def test_64_streams_at_once_each_get_the_text_they_get_alone(server: Server) -> None:
    wanted = prompts(64)

    async def alone_and_together() -> tuple[list[str], list[str]]:
        async with client_of(server) as client:
            together = await asyncio.gather(*(read_stream(client, one, 6) for one in wanted))
            alone = [await read_stream(client, one, 6) for one in wanted]
        return alone, together

    alone, together = asyncio.run(alone_and_together())

    assert together == alone
    assert len(set(alone)) > 40
    assert server.is_idle()
    assert server.metrics()["num_preemptions_total"] > 0, "the pool was to be too small"


async def vanish(client: openai.AsyncOpenAI, prompt: str, draw: random.Random) -> None:
    """Ask and leave: before the answer, after some chunks, or while waiting for a whole one."""
    kind = draw.choice(["at once", "soon", "amid", "whole"])
    if kind == "amid":
        await read_stream(client, prompt, 200, leave_after=draw.randrange(4))
        return
    asked = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=200, temperature=0, stream=kind != "whole"
    )
    task = asyncio.ensure_future(asked)
    # Turns of this loop, not a time: how far the request has come then is chance.
    for _ in range({"at once": 1, "soon": draw.randrange(5, 50), "whole": 200}[kind]):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None and kind != "whole":
        await task.result().close()


@pytest.mark.parametrize("num_leaving", [30, pytest.param(300, marks=pytest.mark.full)])
def test_clients_that_vanish_give_their_blocks_back_and_change_nobody_s_text(
    server: Server, num_leaving: int
) -> None:
    draw = random.Random(7)
    staying = prompts(6)

    async def crowd() -> tuple[list[str], list[str]]:
        async with client_of(server) as client:
            alone = [await read_stream(client, one, 24) for one in staying]
            texts = asyncio.gather(*(read_stream(client, one, 24) for one in staying))
            await asyncio.gather(*(vanish(client, one, draw) for one in prompts(num_leaving)))
            return alone, await texts

    before = server.metrics()["generation_tokens_total"]
    alone, texts = asyncio.run(crowd())
    server.wait_until_idle()
    metrics = server.metrics()

    assert texts == alone
    assert metrics["kv_cache_usage_perc"] == 0
    # Each of those who left would have been given 200 tokens.
    assert metrics["generation_tokens_total"] - before < 2 * 6 * 24 + num_leaving * 50
