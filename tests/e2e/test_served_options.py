"""The scheduler's options on a real server over a tiny model: what is printed and what they do."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from e2e.processes import WAIT_S, Server, run, serving
from tiny_model import write_model

from everbatch import LLM, SamplingParams

FLAGS = (
    *("--num-blocks", "20", "--block-size", "8", "--num-host-blocks", "40"),
    *("--preemption-mode", "auto", "--admission", "now", "--policy", "priority"),
    *("--aging-steps", "50", "--tenant", "a=1:2", "--served-model-name", "tiny"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, *FLAGS) as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    ) as made:
        yield made


@pytest.mark.parametrize(
    "line",
    [
        r"host blocks +40, [\d.]+ KiB when all are used",
        r"policy +priority",
        r"aging_steps +50",
        r"preemption +on shortage, auto, whole, newest; measured: [\d.,]+ µs to move a block out "
        r"and in, [\d.]+ ms to compute a token",
        r"tenant +a: weight 1, at most 2 requests a minute",
    ],
)
def test_options_are_printed_as_they_were_resolved(server: Server, line: str) -> None:
    assert re.search(rf"^{line}$", server.told.text, re.MULTILINE)


def test_samples_are_those_of_the_python_api(client: openai.OpenAI, model: Path) -> None:
    params = SamplingParams(seed=5, max_tokens=12, n=3)
    [expected] = LLM(model, num_blocks=64).generate("hello", params)

    answer = client.completions.create(model="tiny", prompt="hello", n=3, seed=5, max_tokens=12)

    assert [choice.text for choice in answer.choices] == [one.text for one in expected.outputs]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 36)


def test_crowd_in_a_tight_pool_is_preempted_and_says_the_same(
    server: Server, client: openai.OpenAI, model: Path
) -> None:
    prompts = [f"{number} is a number. " * 3 for number in range(16)]
    params = SamplingParams(temperature=0, max_tokens=30)
    expected = LLM(model).generate(prompts, params)

    def text_of(prompt: str) -> str:
        answer = client.completions.create(
            model="tiny",
            prompt=prompt,
            temperature=0,
            max_tokens=30,
            extra_body={"priority": len(prompt) % 3},
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(text_of, prompts))

    assert texts == [answer.outputs[0].text for answer in expected]
    metrics = server.metrics()
    assert metrics["num_preemptions_by_way_total"] > 0
    assert metrics["num_preemptions_by_way_total"] == metrics["num_preemptions_total"]
    server.wait_until_idle()


def test_tenant_over_its_rate_meets_the_client_s_own_error(client: openai.OpenAI) -> None:
    def ask() -> None:
        client.completions.create(
            model="tiny", prompt="x", max_tokens=1, extra_headers={"X-Tenant": "a"}
        )

    ask()
    ask()
    with pytest.raises(openai.RateLimitError, match="max_requests_per_minute is 2") as caught:
        ask()

    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_event_log_tells_tenants_priorities_and_samples(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with serving(model, "--batching", "static", "--event-log", log) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            client.completions.create(
                model=model.name, prompt="x", n=2, max_tokens=3, extra_body={"tenant": "t"}
            )
        assert server.stop() == 0
    header, *events = [json.loads(line) for line in log.read_text().splitlines()]
    [arrived] = [event for event in events if event["event"] == "arrived"]

    assert header["config"]["batching"] == "static"
    assert (arrived["tenant"], arrived["samples"]) == ("t", 2)
    assert len([event for event in events if event["event"] == "sample_finished"]) == 2


def test_generate_writes_a_line_for_each_sample(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text('{"prompt": "a", "priority": 1}\n{"prompt": "b", "n": 1, "max_tokens": 2}\n')
    flags = ["--n", "3", "--max-tokens", "4", "--seed", "9", "--max-num-seqs", "3"]

    done = run("generate", model, "--prompts", prompts, *flags, "--policy", "priority")
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert (done.returncode, done.stderr) == (0, "")
    # The second one goes first, by its priority.
    assert [(line["index"], line.get("sample")) for line in lines] == [
        (1, None),
        (0, 0),
        (0, 1),
        (0, 2),
    ]
    assert [line["completion_tokens"] for line in lines] == [2, 4, 4, 4]
