"""A server to test: the real engine, bridge and application over an executor that speaks a script.

`Harness` holds all parts; `listening` puts a real uvicorn on a free loopback port, `in_process`
gives an httpx client without one. A `Gate` holds the engine thread between two passes, so that a
test decides what happens meanwhile.
"""

import asyncio
import itertools
import signal
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import httpx
import uvloop
from fastapi import FastAPI
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.executor import EmittedTokens, TokenLogprobs
from everbatch.kv_cache.content import in_blocks
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.server.api_keys import ApiKeys
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import bind_socket, serve
from everbatch.server.served import ServedModel
from everbatch.server.settings import ServerSettings
from everbatch.server.spans import SpanSink
from everbatch.tokenizer.grammars import Grammars
from everbatch.tokenizer.parts import TokenizerParts
from everbatch.tokenizer.tokenizer import Tokenizer

MODEL = "toy"
TEST_TIMEOUT_S = 60
EOS = 256
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
# Several scripts, characters of one to four bytes; no stop string of a test by chance.
REPLY = "Grüße, 世界! 🙂🚀 done. ξένος и друг; then 猫 again, one more 👩‍🚀 and that is all"


def async_test(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a coroutine as a test, on the loop that production uses."""

    @wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(), TEST_TIMEOUT_S))

    return run


def byte_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """A vocabulary of the 256 bytes and an eos: token ids are the bytes of a text."""
    alphabet = [_byte_character(byte) for byte in range(256)]
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|eos|>"])
    return Tokenizer(
        TokenizerParts(
            backend=backend,
            special_ids=frozenset([EOS]),
            bos_token_id=None,
            eos_token_id=EOS,
            eos_token_ids=(EOS,),
            chat_template=template,
        )
    )


def _byte_character(byte: int) -> str:
    """How GPT-2 writes a byte: printable ones as they are, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    others = [one for one in range(256) if one not in printable]
    return chr(256 + others.index(byte))


class StepClock:
    """A clock that moves by a millisecond whenever somebody looks."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)

    def now_ns(self) -> int:
        return next(self._ticks) * 1_000_000

    def unix_seconds(self) -> int:
        return 1_700_000_000


class Gate:
    """Stops the engine thread before its next pass while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._reached = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Return when the engine thread stands before the gate."""
        assert await asyncio.to_thread(self._reached.wait, TEST_TIMEOUT_S)

    def pass_through(self) -> None:
        if not self._open.is_set():
            self._reached.set()
            assert self._open.wait(TEST_TIMEOUT_S)


def reply_to(prompt: Sequence[int]) -> str:
    """What the toy model says to a prompt: a piece of REPLY that depends on it."""
    start = sum(prompt) % 7
    return f"<{sum(prompt) % 1009}> {REPLY[start:]}"


@dataclass(slots=True)
class SpeakingExecutor:
    """Says `reply`, byte by byte, to each request, then eos; with ignore_eos it goes on.

    `before_pass` is called with the number of the pass and may raise. Rows whose prompt is among
    `failing_prompts` fail.
    """

    reply: Callable[[Sequence[int]], str] = reply_to
    before_pass: Callable[[int], None] = lambda number: None
    failing_prompts: tuple[bytes, ...] = ()
    gate: Gate = field(default_factory=Gate)
    num_passes: int = 0
    _slots: dict[int, "Speaker"] = field(default_factory=dict)
    _decodes: dict[int, None] = field(default_factory=dict)
    _outputs: dict[str, list[int]] = field(default_factory=dict)
    """By the ids under which they come."""

    @property
    def tokens(self) -> "SpeakingExecutor":
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        assert isinstance(payload, EngineRequest)
        tokens = [*prompt_of(payload), *self._outputs.get(request_id, [])]
        known = tokens[blocks.start * block_size : blocks.stop * block_size]
        return in_blocks(array("i", known).tobytes(), block_size)

    def execute(self, plan: StepPlan) -> StepOutcome:
        self.gate.pass_through()
        self.num_passes += 1
        self.before_pass(self.num_passes)
        for slot in plan.released:
            self._slots.pop(slot, None)
            self._decodes.pop(slot, None)
        for slot in plan.left:
            del self._decodes[slot]
        for admission in (*plan.restated, *plan.admitted):
            assert isinstance(admission.payload, EngineRequest)
            _score(admission.payload)
            self._slots[admission.slot] = Speaker(
                admission.request_id, admission.payload, admission.sample
            )
        self._decodes.update(dict.fromkeys(plan.joined))
        emitting = [chunk for chunk in plan.chunks if chunk.emits]
        first = [slot for chunk in emitting for slot in (chunk.slot, *chunk.followers)]
        return self._say([*first, *self._decodes])

    def reset(self) -> None:
        self._slots.clear()
        self._decodes.clear()

    def _say(self, slots: list[int]) -> StepOutcome:
        outcome = StepOutcome()
        failing = [slot for slot in slots if self._fails(self._slots[slot].request)]
        outcome.failed = [(slot, "it was told to fail") for slot in failing]
        slots = [slot for slot in slots if slot not in failing]
        said = [self._next(self._slots[slot]) for slot in slots]
        for slot, token_id in zip(slots, said, strict=True):
            sampling = self._slots[slot].request.sampling
            is_eos = token_id == EOS and not sampling.ignore_eos
            if is_eos or token_id in sampling.stop_token_ids:
                outcome.stopped.append(slot)
        speakers = [self._slots[slot] for slot in slots]
        logprobs = [
            _logprobs(one.request, token) for one, token in zip(speakers, said, strict=True)
        ]
        outcome.tokens = EmittedTokens([one.id for one in speakers], said, logprobs)
        return outcome

    def _fails(self, request: EngineRequest) -> bool:
        return bytes(prompt_of(request)) in self.failing_prompts

    def _next(self, speaker: "Speaker") -> int:
        outputs = self._outputs.setdefault(speaker.id, [])
        request = speaker.request
        said = self.reply(prompt_of(request))
        script = [*sample_reply(said, speaker.sample).encode(), EOS]
        if request.sampling.ignore_eos:
            outputs.append(script[len(outputs) % (len(script) - 1)])
        else:
            outputs.append(script[len(outputs)])
        return outputs[-1]


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who holds a slot."""

    id: str
    request: EngineRequest
    sample: int


def sample_reply(reply: str, sample: int) -> str:
    """What the toy model makes of a reply in one of several samples; the first says it as it is."""
    return reply if sample == 0 else f"#{sample} {reply}"


def prompt_of(request: EngineRequest) -> list[int]:
    return [int(one) for one in request.prompt_token_ids]  # type: ignore[attr-defined]


def _score(request: EngineRequest) -> None:
    """Score a prompt at once: its tokens are second, the further back the less likely."""
    count = request.sampling.prompt_logprobs
    if count is not None:
        request.prompt_logprobs = [
            TokenLogprobs(-float(place), 2, _ranked(token_id)[:count])
            for place, token_id in enumerate(prompt_of(request)[1:], 1)
        ]


def _ranked(token_id: int) -> tuple[tuple[int, float], ...]:
    return (((token_id + 1) % 256, -0.5), (token_id, -1.0), ((token_id + 2) % 256, -2.0))


def _logprobs(request: EngineRequest, token_id: int) -> TokenLogprobs | None:
    """The chosen token is always second: minus one; the likeliest is the byte after it."""
    count = request.sampling.logprobs
    if count is None:
        return None
    return TokenLogprobs(-1.0, 2, _ranked(token_id)[:count])


@dataclass(slots=True)
class Harness:
    """All parts of a server under test."""

    app: FastAPI
    engine: AsyncEngine
    core: Engine
    executor: SpeakingExecutor
    settings: ServerSettings
    lines: list[str]
    access: list[str]
    """Lines of the access log."""
    server: "asyncio.Task[None] | None" = None
    """Runs while a real server listens."""

    @property
    def gate(self) -> Gate:
        return self.executor.gate

    def assert_all_returned(self) -> None:
        """Every block is free and nobody is left. Call it when the engine thread has ended."""
        state = self.core.scheduler.state
        assert not state.requests
        assert state.pool.num_free + state.pool.num_cached == state.pool.num_blocks


def make_harness(
    *,
    executor: SpeakingExecutor | None = None,
    template: str | None = TEMPLATE,
    settings: dict[str, Any] | None = None,
    keys: ApiKeys | None = None,
    logs_access: bool = False,
    spans: SpanSink | None = None,
    **scheduler: Any,
) -> Harness:
    """Make a server with 8 slots, 64 blocks of 16 tokens and a context of 512."""
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_blocks": 64}
    clock, executor = StepClock(), executor or SpeakingExecutor()
    core = Engine(SchedulerConfig(**{**config, "max_model_len": 512, **scheduler}), executor, clock)
    tokenizer = byte_tokenizer(template)
    model = ServedModel(MODEL, EOS + 1, tokenizer, Grammars(tokenizer, EOS + 1, (EOS,)))
    server = ServerSettings(version="0.0-test", **(settings or {}))
    metrics = ServerMetrics(MODEL, core.stats(), core.config, server.metrics_prefix)
    engine = AsyncEngine(core, metrics, clock, server, spans)
    lines: list[str] = []
    access: list[str] = []
    app = create_app(
        engine,
        model,
        server,
        clock,
        lines.append,
        keys=keys,
        log_access=access.append if logs_access else None,
    )
    return Harness(app, engine, core, executor, server, lines, access)


@asynccontextmanager
async def in_process(harness: Harness) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application without a socket; errors of the server are raised."""
    async with harness.app.router.lifespan_context(harness.app):
        transport = httpx.ASGITransport(harness.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


@asynccontextmanager
async def listening(harness: Harness) -> AsyncIterator[str]:
    """A real server on a free port of the loopback interface; gives its address.

    It is stopped as a user stops it, by SIGTERM, unless the test did.
    """
    sock = bind_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    ready = asyncio.Event()
    grace_s = harness.settings.shutdown_grace_s
    server = asyncio.create_task(serve(harness.app, harness.engine, sock, grace_s, ready.set))
    harness.server = server
    await _first_of(ready.wait(), server)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        harness.gate.open()
        if not server.done():
            signal.raise_signal(signal.SIGTERM)
        await server


@asynccontextmanager
async def openai_client(harness: Harness) -> AsyncIterator[AsyncOpenAI]:
    """The official client, talking to a real server. It does not retry."""
    async with listening(harness) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client:
            yield client


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the event loop run until `condition` holds; the test's timeout is the limit."""
    while not condition():
        await asyncio.sleep(0)


async def _first_of(wanted: Coroutine[Any, Any, Any], other: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(wanted)
    await asyncio.wait((task, asyncio.ensure_future(other)), return_when="FIRST_COMPLETED")
    assert task.done(), "the server ended before it was ready"
