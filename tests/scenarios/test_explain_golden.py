"""`everbatch explain` on the runs of the documents, word for word, through the command line.

The scenario files are beside this one.
"""

import json
import re
from pathlib import Path

import pytest
from command_line import everbatch

FILES = Path(__file__).parent


@pytest.fixture
def explained(tmp_path):
    """Simulate a scenario, explain one request of it; gives the text without its first lines."""

    def explain(scenario: object, *arguments: object) -> list[str]:
        log = tmp_path / "events.jsonl"
        assert everbatch("simulate", scenario, "--events", log, "--json").status == 0
        answer = everbatch("explain", log, *arguments)
        assert (answer.status, answer.err) == (0, "")
        return answer.out.splitlines()

    return explain


def waits(lines: list[str]) -> str:
    """The lines about waits and preemptions, without their margins."""
    text = "\n".join(" ".join(line.split()) for line in lines)
    return text.split("\n\n")[1]


def test_request_5_waits_180_steps_for_the_static_batch(explained, tmp_path):
    log = tmp_path / "log"
    everbatch("simulate", "lesson-static", "--horizon", 240, "--events", log, "--json")

    assert everbatch("explain", log, "5").out == (
        "request 5: prompt 10 tokens, max_tokens 40\n"
        "\n"
        "  boundary 20                     arrived\n"
        "  steps 21 to 200     180 steps   waited (static_batch): the static batch that ran had to "
        "end first\n"
        "                                  in the batch: 2, 3, 4\n"
        "                                  ended already, their slots masked: 1\n"
        "                                  continuous batching would have let it join; a static "
        "batch lets nobody\n"
        "                                  it went on after 4 ended and gave back 1 slot and 14 "
        "blocks\n"
        "  step 201                        took slot 0\n"
        "  step 201            1 step      prefill: 10 tokens\n"
        "  steps 202 to 240    39 steps    decode: 39 outputs\n"
        "  after step 240                  ended by itself (stop), 40 outputs\n"
        "\n"
        "  waited in the queue  180 steps\n"
        "  to the first token   181 steps\n"
        "  prefill              1 step\n"
        "  decode               39 steps\n"
        "  from arrival to end  220 steps\n"
        "  outputs              40\n"
    )


def test_the_log_that_ends_at_80_leaves_it_waiting(explained):
    lines = explained("lesson-static", "5")

    assert " ".join(lines[3].split()).startswith("steps 21 to 80 60 steps waited (static_batch)")
    assert "the log ends here: this request has no end in it" in lines[7]


def test_a_slot_of_four_is_lacking(explained):
    assert waits(explained(FILES / "budget-sequences.toml", "candidate")).startswith(
        "boundary 1 arrived\n"
        "steps 2 to 10 9 steps waited (sequence_budget): it needed 1 slot, 0 of 4 were free\n"
        "slots were held by runner0, runner1, runner2, runner3\n"
        "it would have run in step 2 with one more slot\n"
        "it went on after runner0, runner1, runner2, runner3 ended and gave back 4 slots and "
        "8 blocks\n"
    )


def test_18_tokens_are_lacking_to_480_and_50(explained):
    assert waits(explained(FILES / "budget-tokens.toml", "candidate")).startswith(
        "boundary 1 arrived\n"
        "steps 2 to 10 9 steps waited (token_budget): it had 50 tokens to compute, "
        "32 of 512 were left\n"
        "tokens of step 2 went to 480 decodes\n"
        "decodes go first: min_prefill_tokens keeps a share for prompts\n"
        "it would have run in step 2 with 18 more tokens of budget\n"
        "it went on after runner0, runner1, runner2, runner3, runner4, runner5 and 474 more ended "
        "and gave back 480 slots and 480 blocks\n"
    )


def test_2_of_4_blocks_are_lacking(explained):
    assert waits(explained(FILES / "budget-blocks.toml", "candidate")).startswith(
        "boundary 1 arrived\n"
        "steps 2 to 10 9 steps waited (kv_budget): it needed 4 blocks, 2 of 6 were to be had\n"
        "blocks were held by runner0 (2), runner1 (2)\n"
        "it would have run in step 2 with 2 more blocks\n"
        "it went on after runner0, runner1 ended and gave back 2 slots and 4 blocks\n"
    )


def test_the_victim_of_a_shortage_computes_8_tokens_again(explained):
    lines = explained("golden-shortage", "b")

    assert waits(lines) == (
        "boundary 0 arrived\n"
        "step 1 took slot 1\n"
        "step 1 1 step prefill: 6 tokens\n"
        "steps 2 to 3 2 steps decode: 2 outputs\n"
        "step 4 preempted: it needed 1 block itself, none was free, and it is the one to yield\n"
        "gave up 2 blocks; 8 tokens must be computed again\n"
        "step 4 1 step waited (cooldown): it headed the queue, but step 4 preempted somebody (b) "
        "and admits nobody\n"
        "the step after the last one that preempts considers it again\n"
        "steps 5 to 7 3 steps waited (kv_budget): it needed 3 blocks, 2 of 4 were to be had\n"
        "blocks were held by a (2)\n"
        "it would have run in step 5 with one more block\n"
        "it went on after a ended and gave back 1 slot and 3 blocks\n"
        "step 8 came back to slot 0\n"
        "step 8 1 step rebuild: 8 tokens computed again\n"
        "steps 9 to 12 4 steps decode: 4 outputs\n"
        "after step 12 ended by itself (stop), 7 outputs"
    )
    assert lines[-1].split() == ["computed", "again", "8", "tokens"]


def test_out_of_a_stall_the_victim_yields_for_nobody_in_particular(explained):
    text = waits(explained("golden-stall", "b"))

    assert (
        "steps 4 to 5 2 steps waited (kv_budget): it needed 1 block, 0 of 4 were to be had" in text
    )
    assert "step 6 preempted: nobody could run, so one had to yield" in text


def test_512_decodes_starve_a_prompt_and_the_way_out_is_named(explained):
    assert waits(explained("starvation", "prompt")).startswith(
        "boundary 1 arrived\n"
        "steps 2 to 100 99 steps waited (token_budget): it had 30 tokens to compute, "
        "0 of 512 were left\n"
        "tokens of step 2 went to 512 decodes\n"
        "decodes go first: min_prefill_tokens keeps a share for prompts\n"
        "it would have run in step 2 with one more token of budget\n"
    )


def test_with_a_share_the_decodes_that_pause_are_told_why(explained):
    text = "\n".join(explained("starvation-share", "d482"))

    assert "waited (prefill_share): its token of the step's 512 was kept for prompts" in text
    assert "tokens of step 2 went to 482 decodes, prompt (30)" in " ".join(text.split())


def test_the_worst_are_named_with_what_to_ask(explained):
    assert explained("golden-shortage", "--worst", 5)[:2] == [
        "most steps without a token:",
        "  b  4 steps, mostly kv_budget, stop",
    ]


def test_json_has_the_same_facts(explained):
    facts = json.loads("\n".join(explained("golden-shortage", "b", "--json")))
    [life] = facts["lives"]

    assert (facts["clock"], facts["request"]) == ("steps", "b")
    assert [chapter["kind"] for chapter in life["chapters"]] == [
        *("admitted", "prefill", "decode", "preempted", "wait", "wait", "admitted"),
        *("rebuild", "decode", "finished"),
    ]
    assert life["chapters"][5]["lacking"] == {"slots": 0, "tokens": 0, "blocks": 1}
    assert life["sums"]["recomputed_tokens"] == 8


def test_the_document_shows_what_is_printed(tmp_path, monkeypatch):
    document = (FILES.parents[1] / "docs" / "explain.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)

    shown = []
    for kind, text in blocks:
        if kind == "toml":
            Path("queue.toml").write_text(text, encoding="utf-8")
            continue
        for part in re.split(r"^\$ everbatch ", text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            answer = everbatch(*command.partition(" > ")[0].split())
            assert (answer.status, answer.err) == (0, "")
            if ">" not in command:
                shown.append(command)
                assert answer.out == output
    assert len(shown) == 4
