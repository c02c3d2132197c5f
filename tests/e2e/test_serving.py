"""The default model behind a real server: what is printed, the terminal chat, OpenAI's client."""

import math
import re
import subprocess
from collections.abc import Iterator

import openai
import pytest
from e2e.processes import ENVIRON, WAIT_S, Server, run, serving

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--status-interval", "0.2") as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def greedy(
    client: openai.OpenAI, prompt: str = PROMPT, max_tokens: int = 8, **options: object
) -> str:
    answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, **options
    )
    return answer.choices[0].text


# What is printed.


@pytest.mark.parametrize(
    "line",
    [
        rf"model +{MODEL}  \(.+\.gguf\)",
        r"parameters +134,515,008 as (bfloat16, 256\.6|float32, 513\.1) MiB",
        r"kernels +(native, \w+, \d+ threads?|reference \(numpy\).*)",
        r"kv blocks +[\d,]+ of 16 tokens = [\d,]+ tokens, .+ when .+ \((360|720)\.0 KiB each\)",
        r"max_model_len +8,192",
        r"max_num_seqs +128",
        r"max_num_batched_tokens +512",
        r"ready at http://127\.0\.0\.1:\d+ .*",
    ],
)
def test_configuration_is_printed_one_line_each(server: Server, line: str) -> None:
    assert re.search(rf"^{line}$", server.told.text, re.MULTILINE)


def test_printed_curl_line_works_as_it_is(server: Server) -> None:
    printed = server.told.wait_for(lambda line: line.startswith("curl ")).strip()
    # Shorter, so that the test is.
    command = printed.replace('"max_tokens": 60', '"max_tokens": 3')
    assert command != printed
    done = subprocess.run(
        ["sh", "-c", f"{command} --silent --show-error --fail-with-body"],
        capture_output=True,
        text=True,
        env={**ENVIRON, "NO_PROXY": "127.0.0.1"},
        timeout=WAIT_S,
    )

    assert done.returncode == 0, done.stderr
    assert '"object":"chat.completion"' in done.stdout
    assert '"completion_tokens":3' in done.stdout


def test_status_line_tells_what_runs(server: Server, client: openai.OpenAI) -> None:
    status = re.compile(
        r"running 1, waiting 0, KV \d+\.\d%, prompt [\d.]+ tokens/s, output [\d.]+ tokens/s, "
        r"preemptions 0\n"
    )
    with client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=2_000,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(iter(stream))
        server.told.wait_for(status.fullmatch)
    server.wait_until_idle()


# `everbatch chat`.


def test_chat_answers_each_line_of_a_pipe_in_one_conversation(server: Server) -> None:
    turns = (
        "What is the capital of France?\n\nAnd of Italy?\n/reset\nWhat is the capital of France?\n"
    )
    flags = ["--temperature", "0", "--max-tokens", "8"]

    done = run("chat", server.url, *flags, stdin=turns)
    alone = run("chat", f"{server.url}/v1/", *flags, stdin="And of Italy?\n")
    first, second, again = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in first
    assert again == first
    assert second != alone.stdout.strip()


def test_chat_turn_that_is_refused_is_told_and_the_next_goes_on(server: Server) -> None:
    turns = f"{'long ' * 9_000}\nHi\n"
    done = run("chat", server.url, "--temperature", "0", "--max-tokens", "3", stdin=turns)

    assert done.returncode == 1
    assert done.stderr.startswith("everbatch: ")
    assert "8,192" in done.stderr
    assert len(done.stdout.splitlines()) == 1


# OpenAI's client.


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_completion_continues_the_prompt(client: openai.OpenAI) -> None:
    assert "Paris" in greedy(client)


def test_streamed_text_is_the_whole_one(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert "".join(c.choices[0].text for c in chunks if c.choices) == greedy(client, max_tokens=12)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_chat_completion_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_completion_tokens": 10,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert whole.message.role == "assistant"
    assert whole.message.content == text
    assert "Paris" in text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_logprobs_agree_with_greedy_choice(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None

    assert "".join(told.tokens) == answer.choices[0].text
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert max(top, key=lambda one: top[one]) == token
        assert top[token] == logprob
        assert sum(math.exp(value) for value in top.values()) <= 1.0 + 1e-5


def test_stop_string_cuts_the_text(client: openai.OpenAI) -> None:
    whole = greedy(client, max_tokens=12)
    stop = whole[6:9]
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, stop=[stop]
    )

    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_seed_repeats_a_random_text(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1.5, seed=seed
        )
        return answer.choices[0].text

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_bias_decides_the_token(client: openai.OpenAI) -> None:
    assert greedy(client, max_tokens=3, logit_bias={"5000": 100}) == " properly" * 3


def test_errors_are_the_client_s_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="8,192"):
        greedy(client, "long " * 9_000)
    with pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="frobnicate"):
        greedy(client, extra_body={"frobnicate": 1})
