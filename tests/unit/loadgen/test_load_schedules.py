"""When requests are due, which prompts they bring, and what all of that has to do with the seed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S
from everbatch.loadgen.calls import BodyOptions, Calls
from everbatch.loadgen.prompt_file import PromptFile
from everbatch.loadgen.prompts import WORDS, RandomTokenIds, RandomWords, Scale
from everbatch.loadgen.schedule import Extent, LengthRange, Pace, Ramp, content_of
from everbatch.loadgen.schedule import synthetic_requests as synthetic
from everbatch.loadgen.target import Target
from everbatch.workload.requests import Prompt, RequestSpec, Segment

TARGET = Target.at("http://127.0.0.1:1")


def spec(tokens: int = 20, *, position: int = 0, pieces: tuple = (), **more) -> RequestSpec:
    prompt = Prompt(tokens, pieces or (Segment(None, tokens),))
    return RequestSpec(str(position), position, 0, prompt, 8, more.pop("max_tokens", 8), **more)


def specs(pace: Pace, extent: Extent, seed: int = 0) -> list[RequestSpec]:
    content = content_of(LengthRange(5, 9), LengthRange(1, 3))
    source = synthetic(pace, content, extent, seed)
    found = []
    while source.peek() is not None:
        found.append(source.pop())
    return found


def gaps_of(pace: Pace, count: int) -> list[float]:
    times = [one.arrival for one in specs(pace, Extent(count, None))]
    return [(after - before) / NS_PER_S for before, after in pairwise(times)]


def test_arrivals_have_their_rate_and_burstiness():
    for burstiness, cv in ((1.0, 1.0), (0.25, 2.0), (25.0, 0.2)):
        gaps = gaps_of(Pace(10.0, burstiness), 20_001)
        mean = sum(gaps) / len(gaps)
        deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

        assert mean == pytest.approx(0.1, rel=0.06)
        assert deviation / mean == pytest.approx(cv, rel=0.06)


def test_infinite_rate_has_all_come_at_once():
    assert {one.arrival for one in specs(Pace(), Extent(7, None))} == {0}


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_ramp_goes_from_one_rate_to_the_other(strategy, middle):
    ramp = Ramp(strategy, 1.0, 100.0)

    assert ramp.rate(0, 101) == pytest.approx(1.0)
    assert ramp.rate(50, 101) == pytest.approx(middle)
    assert ramp.rate(100, 101) == pytest.approx(100.0)
    assert ramp.rate(0, 1) == 1.0


def test_ramp_sends_faster_at_its_end():
    gaps = gaps_of(Pace(ramp=Ramp("linear", 1.0, 9.0)), 2_001)

    assert sum(gaps[:500]) > 2 * sum(gaps[-500:])


def test_duration_ends_arrivals():
    found = specs(Pace(100.0), Extent(None, 2 * NS_PER_S))

    assert 150 < len(found) < 250
    assert found[-1].arrival < 2 * NS_PER_S


def test_seed_decides_all():
    first, again, other = (specs(Pace(5.0), Extent(20, None), seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert {one.prompt.num_tokens for one in first} <= set(range(5, 10))


def test_words_are_of_one_length():
    assert len(set(WORDS)) == len(WORDS)
    assert {len(word) for word in WORDS} == {4}


@pytest.mark.parametrize(("tokens", "words"), [(100, 45), (11, 1), (12, 1), (1, 1), (30, 10)])
def test_text_has_the_words_that_come_nearest(tokens, words):
    told = RandomWords(Scale(per_word=2.0, overhead=10.0), 0).told(spec(tokens))

    assert len(told.prompt.split()) == words
    assert told.prompt_tokens == tokens


def test_prompts_that_begin_alike_have_equal_words():
    prompts = RandomWords(Scale(1.0, 3.0), 0)
    shared = Segment("system", 30)
    one = prompts.told(spec(50, position=1, pieces=(shared, Segment(None, 20)))).prompt.split()
    two = prompts.told(spec(40, position=2, pieces=(shared, Segment(None, 10)))).prompt.split()
    whole = prompts.told(spec(20, position=3, pieces=(Segment("system", 20),))).prompt.split()

    assert one[:30] == two[:30]
    assert one[30:37] != two[30:37]
    assert (len(one), len(two)) == (47, 37)
    assert whole == one[:17]


def test_token_ids_are_exact_and_in_their_range():
    prompts = RandomTokenIds(7, 9, 0)
    pieces = (Segment("a", 5), Segment(None, 6))

    told = prompts.told(spec(11, pieces=pieces))

    assert len(told.prompt) == told.prompt_tokens == 11
    assert set(told.prompt) <= {7, 8, 9}
    assert prompts.told(spec(5, position=4, pieces=pieces[:1])).prompt == told.prompt[:5]


def prompt_file(tmp_path: Path, *lines: object, is_chat: bool = False) -> PromptFile:
    path = tmp_path / "prompts.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts))
    return PromptFile(path, is_chat=is_chat)


def test_lines_of_a_file_come_in_order_and_again(tmp_path):
    found = prompt_file(tmp_path, "a b", "", {"prompt": "c", "max_tokens": 2}, {"prompt": "d"})

    told = [found.told(spec(position=index)) for index in range(4)]

    assert [one.prompt for one in told] == ["a b", "c", "d", "a b"]
    assert [one.output_tokens for one in told] == [8, 2, 8, 8]


def test_texts_of_a_file_are_messages_in_chat(tmp_path):
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    found = prompt_file(tmp_path, "a b", {"messages": messages}, is_chat=True)

    assert found.told(spec()).prompt == [{"role": "user", "content": "a b"}]
    assert found.told(spec(position=1)).prompt == messages


@pytest.mark.parametrize("is_chat", [False, True])
def test_conversations_give_their_first_turns(tmp_path, is_chat):
    turns = [{"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}]
    conversations = [{"id": "1", "conversations": turns}, {"conversations": []}, {"id": 3}]
    found = prompt_file(tmp_path, json.dumps(conversations, indent=1), is_chat=is_chat)

    assert len(found) == 1
    expected = [{"role": "user", "content": "a\nb"}] if is_chat else "a\nb"
    assert found.told(spec()).prompt == expected


@pytest.mark.parametrize(
    ("line", "is_chat", "words"),
    [
        ('{"prompt": 3}', False, "line 1 prompt is 3"),
        ('{"prompt": "a", "messages": []}', False, "must have one of"),
        ('{"max_tokens": 3}', False, "must have one of"),
        ('{"promt": "a"}', False, 'did you mean "prompt"'),
        ('{"prompt": "a", "max_tokens": 0}', False, "max_tokens is 0"),
        ('{"prompt', False, "is no JSON"),
        ('{"messages": [{"role": "user"}]}', False, "--endpoint chat"),
        ('{"messages": [3]}', True, "must be a list of objects"),
        ('{"messages": []}', True, "is empty"),
        ('{"prompt_token_ids": [1]}', True, "--endpoint completions"),
        ('{"prompt_token_ids": ["a"]}', False, "list of integers"),
        ('{"prompt_token_ids": [-1]}', False, "list of integers"),
        pytest.param("[" * 100_000, False, "no list of conversations", id="deep"),
        ('["a"]', False, "no list of conversations"),
        ('[{"conversations": []}]', False, "holds no prompt"),
        ("", False, "holds no prompt"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, line, is_chat, words):
    with pytest.raises(ConfigError) as caught:
        prompt_file(tmp_path, line, is_chat=is_chat)

    assert words in str(caught.value)


def body_of(message: bytes) -> dict:
    return json.loads(message.partition(b"\r\n\r\n")[2])


def test_limits_of_a_workload_go_into_the_body():
    calls = Calls(TARGET, BodyOptions("completions", "m"), RandomWords(Scale(), 0))

    assert body_of(calls.make(spec(max_tokens=5)).message)["max_tokens"] == 5
    assert body_of(calls.make(spec(max_tokens=50)).message)["max_tokens"] == 8


def test_tenants_and_deadlines_go_as_headers_and_the_rest_is_told():
    calls = Calls(TARGET, BodyOptions("completions", "m"), RandomWords(Scale(), 0))
    wanted = spec(tenant="a b", deadline=1_500_000_000, priority=3, num_samples=2)

    head = calls.make(wanted).message.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    calls.make(spec(tenant="a\r\nX: y"))

    assert "X-Tenant: a b" in head
    assert "X-Max-Wait-S: 1.500000000" in head
    assert calls.notes() == [
        "1 request: of several samples one is asked for",
        "1 request: the priority is not sent",
    ]


def test_headers_cannot_be_smuggled_in():
    calls = Calls(TARGET, BodyOptions("completions", "m"), RandomWords(Scale(), 0))

    assert b"X: y" not in calls.make(spec(tenant="a\r\nX: y")).message
    with pytest.raises(ConfigError, match="--api-key"):
        Target.at("http://x", "a\r\nX: y")


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://a", "a", 80, ""),
        ("https://a.b/x/", "a.b", 443, "/x"),
        ("http://[::1]:9", "::1", 9, ""),
    ],
)
def test_urls_are_read(url, host, port, path):
    target = Target.at(url)

    assert (target.host, target.port, target.path) == (host, port, path)
    named = f"[{host}]" if ":" in host else host
    assert (
        target.message("GET", "/v1/models")
        .decode()
        .startswith(f"GET {path}/v1/models HTTP/1.1\r\nHost: {named}:{port}\r\n")
    )


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://a/ü", "x"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match="--url"):
        Target.at(url)
