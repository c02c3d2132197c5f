"""The official client of OpenAI's API, as many streams of it in one process as there are prompts.

It is what users have, and costs more than a server's part of the work (raw_client.py does not).
"""

import asyncio
import time
from collections.abc import Sequence

from openai import AsyncOpenAI
from streams_workload import Streamed


def stream_all(
    host: str, port: int, prompts: Sequence[Sequence[int]], num_outputs: int
) -> list[Streamed]:
    """Send all prompts at once; give what each stream brought."""
    return asyncio.run(_stream_all(f"http://{host}:{port}/v1", prompts, num_outputs))


async def _stream_all(
    url: str, prompts: Sequence[Sequence[int]], num_outputs: int
) -> list[Streamed]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        [model] = (await client.models.list()).data
        streams = (_stream(client, model.id, list(prompt), num_outputs) for prompt in prompts)
        return list(await asyncio.gather(*streams))


async def _stream(client: AsyncOpenAI, model: str, prompt: list[int], num_outputs: int) -> Streamed:
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=num_outputs,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text_ns: list[int] = []
    num_tokens = 0
    async for event in stream:
        if event.usage is not None:
            num_tokens = event.usage.completion_tokens
        elif event.choices[0].finish_reason is None:
            text_ns.append(time.perf_counter_ns())
    return Streamed(num_tokens, text_ns)
