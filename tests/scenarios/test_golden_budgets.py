"""The three budgets one by one, with their numbers; starvation, and its cures.

The scenario files are beside this one.
"""

from pathlib import Path

from command_line import simulate

FILES = Path(__file__).parent


def test_a_request_without_a_slot_waits_for_the_sequence_budget():
    run = simulate(FILES / "budget-sequences.toml")

    assert run.lines[2]["running"] == 4
    assert run.lines[2]["deferred"] == {"candidate": "sequence_budget"}
    assert run.deferrals("candidate") == [("sequence_budget", 1, 0)]
    assert run.request("candidate")["first_step"] == 11


def test_480_and_50_tokens_exceed_512_without_chunks():
    run = simulate(FILES / "budget-tokens.toml")

    assert run.lines[2]["tokens"] == 480
    assert run.lines[2]["deferred"] == {"candidate": "token_budget"}
    assert run.deferrals("candidate") == [("token_budget", 50, 32)]


def test_with_chunks_the_480_leave_a_chunk_of_32():
    run = simulate(FILES / "budget-tokens-chunked.toml")

    assert run.lines[2]["tokens"] == 512
    assert run.chunks("candidate") == [32, 18]


def test_4_blocks_needed_and_2_free_is_no_admission():
    run = simulate(FILES / "budget-blocks.toml")

    assert run.lines[1]["free_blocks"] == 2
    assert run.lines[2]["deferred"] == {"candidate": "kv_budget"}
    assert run.deferrals("candidate") == [("kv_budget", 4, 2)]


def test_with_10_free_blocks_it_is_admitted():
    run = simulate(FILES / "budget-blocks-enough.toml")

    assert run.lines[1]["free_blocks"] == 10
    assert run.lines[2]["admitted"] == ["candidate"]
    assert run.lines[2]["scheduled"]["candidate"] == 50


def test_512_decodes_starve_a_prompt():
    run = simulate("starvation")

    assert {len(run.lines[step]["decode"]) for step in range(2, 101)} == {512}
    assert all(run.lines[step]["deferred"] == {"prompt": "token_budget"} for step in range(2, 101))
    assert run.request("prompt")["first_step"] == 101


def test_a_share_of_128_tokens_starts_the_prompt_in_the_next_step():
    run = simulate("starvation-share")

    assert run.request("prompt")["first_step"] == 2
    assert run.chunks("prompt") == [30]
    assert len(run.lines[2]["decode"]) == 482
    assert set(run.lines[2]["deferred"].values()) == {"prefill_share"}


def test_aging_starts_the_prompt_after_5_steps_without_a_token():
    run = simulate("starvation-aging")

    assert run.request("prompt")["first_step"] == 7
    assert run.chunks("prompt") == [30]
