"""The Python API on a tiny model: what may be given, what comes back, what is refused."""

import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny_model import MAX_MODEL_LEN, VOCAB_SIZE, write_gguf_model, write_model

from everbatch import LLM, RequestOutput, SamplingParams
from everbatch.base.errors import ConfigError, EventLogError, InvalidRequest, ModelLoadError

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=64)


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    [answer] = llm.generate(prompt, params)
    return answer.outputs[0].text


def idle(llm: LLM) -> bool:
    stats = llm.real.engine.stats()
    return (
        not llm.real.engine.has_work
        and stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    )


# Prompts.


def test_every_way_to_give_a_prompt_gives_the_same_answer(llm: LLM) -> None:
    ids = list(b"hello")
    text = text_of(llm, "hello")
    ways = [
        ["hello"],
        ("hello",),
        (prompt for prompt in ["hello"]),
        ids,
        tuple(ids),
        np.array(ids),
        [ids],
        [np.array(ids)],
        {"prompt": "hello"},
        [{"prompt": "hello"}],
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": tuple(ids)}],
    ]

    assert len(text) == 24
    for way in ways:
        [answer] = llm.generate(way, GREEDY)
        assert answer.outputs[0].text == text
        assert answer.prompt_token_ids == ids


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [9, 1, 5, 3]
    params = [SamplingParams(temperature=0, max_tokens=length) for length in lengths]
    finished: list[int] = []

    answers = llm.generate(
        [f"prompt {length}" for length in lengths],
        params,
        on_finished=lambda index, _: finished.append(index),
    )

    assert [len(answer.outputs[0].token_ids) for answer in answers] == lengths
    assert [answer.prompt for answer in answers] == [f"prompt {length}" for length in lengths]
    assert finished == [1, 3, 2, 0]
    assert all(answer.finished for answer in answers)
    assert idle(llm)


def test_answer_does_not_depend_on_what_runs_beside_it(llm: LLM) -> None:
    prompts = [f"{number} " * (number + 1) for number in range(40)]
    alone = [text_of(llm, prompt) for prompt in prompts]

    together = [answer.outputs[0].text for answer in llm.generate(prompts, GREEDY)]

    assert together == alone


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (5, "list of prompts, not int"),
        (b"hello", "not bytes"),
        ([b"hello"], "list of integers, not bytes"),
        ([None], "list of integers, not NoneType"),
        ([["a"]], "must be integers, not 'a'"),
        ([[1.0]], "must be integers, not 1.0"),
        ([[True]], "must be integers, not True"),
        ([[VOCAB_SIZE]], rf"token id {VOCAB_SIZE}, the model knows \[0, {VOCAB_SIZE}\)"),
        ([[-1]], "token id -1"),
        ([[10**400]], "token id 1000"),
        ({}, 'either "prompt" or "prompt_token_ids", not nothing'),
        ({"prompt": "a", "prompt_token_ids": [1]}, "either"),
        ({"prompt": "a", "multi_modal_data": {}}, "'multi_modal_data'"),
        ({"prompt": 5}, "must be text, not int"),
        ({"prompt_token_ids": "hello"}, "list of integers, not str"),
        ("", "has no tokens"),
        (["ok", ""], r"prompts\[1\]"),
        (["ok", "x" * 300], r"prompts\[1\]: .*300.*256"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_bad_prompt_is_refused_before_anything_runs(llm: LLM, prompts: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        llm.generate(prompts, GREEDY)

    assert llm.real.engine.stats().num_arrived == 0


def test_longest_prompt_runs_and_one_token_more_does_not(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1)

    assert len(text_of(llm, "x" * (MAX_MODEL_LEN - 1), params)) == 1
    with pytest.raises(InvalidRequest, match="256"):
        llm.generate("x" * MAX_MODEL_LEN, params)


def test_max_tokens_is_16_unless_given_and_none_is_what_the_limits_leave(llm: LLM) -> None:
    greedy, ids = {"temperature": 0, "ignore_eos": True}, [7] * 200
    [few] = llm.generate([ids], SamplingParams(**greedy))
    [all_that_fit] = llm.generate([ids], SamplingParams(**greedy, max_tokens=None))

    assert len(few.outputs[0].token_ids) == 16
    assert len(all_that_fit.outputs[0].token_ids) == 56


def test_more_prompts_than_the_engine_is_handed_at_once_all_run(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbatch.llm.llm.MAX_QUEUED", 3)

    answers = llm.generate(["x"] * 10, SamplingParams(temperature=0, max_tokens=2))

    assert len({answer.outputs[0].text for answer in answers}) == 1
    assert len({answer.request_id for answer in answers}) == 10


# Conversations.


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "yo"}]

    [answer] = llm.chat(messages, GREEDY)
    several = llm.chat([messages, messages], GREEDY)

    assert bytes(answer.prompt_token_ids) == b"user: yo\nassistant:"
    assert answer.outputs[0].text == text_of(llm, "user: yo\nassistant:")
    assert [one.outputs[0].text for one in several] == [answer.outputs[0].text] * 2


@pytest.mark.parametrize(
    "messages", [[], [[]], "yo", {"role": "user", "content": "yo"}, None, ["yo"], [{}], 5]
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: object) -> None:
    with pytest.raises(InvalidRequest, match="messages"):
        llm.chat(messages, GREEDY)


def test_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, template=None))

    with pytest.raises(InvalidRequest, match="template"):
        llm.chat([{"role": "user", "content": "yo"}])


# Models.


def test_same_weights_in_one_file_in_shards_and_in_gguf_say_the_same(
    model: Path, tmp_path: Path
) -> None:
    models = [
        model,
        write_model(tmp_path / "shards", num_shards=3),
        write_gguf_model(tmp_path / "tiny.gguf"),
    ]

    texts = {text_of(LLM(one), "hello") for one in models}

    assert len(texts) == 1


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "rms_norm_eps"])
def test_configuration_without_a_size_names_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelLoadError, match=key):
        LLM(write_model(tmp_path, without=(key,)))


# Options of the engine.


def test_every_option_may_be_given_by_name(model: Path) -> None:
    plain, options = (
        LLM(model, num_blocks=64),
        {
            "batching": "static",
            "num_blocks": 64,
            "num_host_blocks": 8,
            "preemption_mode": "auto",
            "policy": "srpt",
            "admission": "reserve",
            "backfill": "safe",
        },
    )
    llm = LLM(model, **options)
    costs = llm.real.options.scheduler.preemption_costs

    assert costs is not None
    assert costs.swap_ns_per_block > 0
    assert costs.recompute_ns_per_token > 0
    assert dict(llm.real.options.describe())["preemption"].startswith("on shortage, auto, whole")
    assert text_of(llm, "hello") == text_of(plain, "hello")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu_memory_utilization": 0.9}, "knows no option gpu_memory_utilization"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": "8"}, "max_num_seqs must be an integer"),
        ({"kv_cache_memory": "1GiB"}, "kv_cache_memory must be a number of bytes, an integer"),
        ({"max_model_len": 257}, "--max-model-len 257 is more than the 256"),
        ({"tenants": {"a": {"share": 2}}}, "tenant 'a' has the unknown option share"),
        ({"tenants": {"a": {"weight": 0}}}, "weight must be finite and above 0"),
        ({"tenants": {"a": 2}}, "not 'a' to 2"),
        ({"preemption_mode": "swap"}, "host tier"),
    ],
)
def test_impossible_option_is_refused_by_name(
    model: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(model, **options)


def test_event_log_may_be_named_by_text(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    llm = LLM(model, event_log=str(path))
    text_of(llm, "hello")
    llm.close()

    assert '"finished"' in path.read_text()
    with pytest.raises(EventLogError, match="Is a directory"):
        LLM(model, event_log=tmp_path)


# Leaving in the middle.


def press_ctrl_c(times: int) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_what_runs_and_the_engine_goes_on(llm: LLM) -> None:
    expected = text_of(llm, "hello")
    params = [SamplingParams(temperature=0, max_tokens=length) for length in (2, 100)]
    finished: list[int] = []

    def interrupt(index: int, _: RequestOutput) -> None:
        finished.append(index)
        press_ctrl_c(1)

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], params, on_finished=interrupt)

    assert finished == [0]
    assert idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert text_of(llm, "hello") == expected


def test_ctrl_c_at_the_very_end_is_not_lost(llm: LLM) -> None:
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", GREEDY, on_finished=lambda *_: press_ctrl_c(1))

    assert idle(llm)


def test_second_ctrl_c_does_not_wait(llm: LLM) -> None:
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", GREEDY, on_finished=lambda *_: press_ctrl_c(2))


def test_error_of_the_caller_s_ends_what_runs(llm: LLM) -> None:
    def fail(index: int, _: RequestOutput) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llm.generate(["a", "b"], [GREEDY, SamplingParams(max_tokens=100)], on_finished=fail)

    assert idle(llm)


def test_other_threads_may_generate(llm: LLM) -> None:
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(text_of(llm, "hello")))
    thread.start()
    thread.join(60)

    assert texts == [text_of(llm, "hello")]
