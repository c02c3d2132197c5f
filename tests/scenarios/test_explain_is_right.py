"""What `explain` says would have let a request run, lets it run.

Random scenarios are replayed up to the boundary of a random deferral; there exactly the resource
that the explanation names is added, in the amount it names. With one less it does not run.
"""

import json
from dataclasses import replace
from random import Random

import pytest
from explained_run import Replay, replay_to

from everbatch.base.events import Deferred
from everbatch.base.sample_ids import sample_id
from everbatch.diagnose.life import Lack, Wait
from everbatch.scheduler.plan import DeferReason
from everbatch.workload.scenario import parse_scenario

SEEDS = range(250)
MAX_DEFERRALS = 6


def random_scenario(draw: Random):
    """A crowd on a machine that is too small for it."""
    budget = draw.choice([4, 8, 16, 40])
    engine = {
        "batching": draw.choice(["continuous"] * 7 + ["static"]),
        "max_num_seqs": draw.randint(1, 5),
        "max_num_batched_tokens": budget,
        "num_blocks": draw.randint(6, 16),
        "block_size": draw.randint(2, 4),
        "enable_chunked_prefill": draw.random() < 0.7,
        "enable_prefix_caching": draw.random() < 0.5,
        "long_prefill_token_threshold": draw.choice([0, 0, 3]),
        "min_prefill_tokens": draw.choice([0, 0, 2]),
        "prefill_aging_steps": draw.choice([0, 0, 3]),
        "policy": draw.choice(["fcfs", "fcfs", "priority", "srpt", "vtc"]),
        "aging_steps": draw.choice([0, 2]),
        "backfill": draw.choice(["none", "none", "greedy", "safe"]),
        "admission": draw.choice(["now", "prompt", "peak", "reserve"]),
        "watermark": draw.choice([0.0, 0.0, 0.2]),
        "preemption_trigger": draw.choice(["shortage", "stall"]),
        "preemption_mode": draw.choice(["recompute", "swap"]),
        "preemption_extent": draw.choice(["whole", "tail"]),
        "preemption_victim": draw.choice(["newest", "priority", "least_lost", "largest"]),
        "num_host_blocks": draw.choice([0, 4, 20]),
        "max_preemptions": draw.choice([0, 0, 1]),
    }
    requests = [
        {
            "id": f"r{number}",
            "arrival": draw.randrange(12),
            "prompt": [
                {"text": draw.choice("xy"), "tokens": draw.randint(0, 6)},
                {"tokens": draw.randint(1, 8)},
            ],
            "output_tokens": draw.randint(1, 9),
            "priority": draw.randrange(3),
            "tenant": draw.choice("ab"),
            "n": draw.choice([1, 1, 1, 1, 2]),
        }
        for number in range(draw.randint(3, 9))
    ]
    requests.sort(key=lambda request: request["arrival"])
    return parse_scenario(json.dumps({"engine": engine, "requests": requests}), "given", "given")


def deferrals_of(replay: Replay) -> list[tuple[int, str, int]]:
    """All deferrals, as (number of the call, id, boundary)."""
    return [
        (number, event.id, call.boundary)
        for number, call in enumerate(replay.calls)
        for event in call.deferred
    ]


def wait_of(replay: Replay, id: str, call: int) -> Wait:
    """What the explanation says of a deferral."""
    [wait] = [
        wait
        for wait in replay.life(id, call + 1).waits()
        if wait.from_t == replay.calls[call].boundary
    ]
    return wait


def check(replay: Replay, call: int, id: str) -> str:
    """Follow what the explanation says of one deferral; gives what kind it was."""
    wait = wait_of(replay, id, call)
    if wait.lacking:
        check_lack(replay, call, id, wait)
        return "lack"
    if wait.reason == "cooldown":
        check_cooldown(replay, call, id, wait)
        return "cooldown"
    if wait.reason == "static_batch":
        check_static(replay, call, wait)
        return "static_batch"
    # It is somebody else's obstacle: that one's own explanation must be right.
    head = wait.pointer
    assert head is not None, f"{id} waits for {wait.reason} and nobody is named"
    assert head.id != id
    [since] = [
        number
        for number, one in enumerate(replay.calls[: call + 1])
        if one.boundary == head.since_step - 1 and any(e.id == head.id for e in one.deferred)
    ]
    check(replay, since, head.id)
    return "pointer"


def check_lack(replay: Replay, call: int, id: str, wait: Wait) -> None:
    again = replay_to(replay, call, wait.lacking.blocks)
    give(again, id, wait, wait.lacking)
    assert again.runs(id), f"{id} does not run in step {wait.from_step} with {wait.lacking}"
    if is_first_in_need(replay, call, id, wait):
        again = replay_to(replay, call, wait.lacking.blocks)
        again.add(wait.lacking)
        assert again.runs(id), f"{id} does not run with {wait.lacking} more of everything"
    engine = replay.scenario.engine
    if wait.phase == "decode" or (engine.batching == "static" and engine.enable_prefix_caching):
        # For decodes enough is named for those before it too; added blocks keep content cached.
        return
    for less in fewer(wait.lacking):
        again = replay_to(replay, call, wait.lacking.blocks)
        give(again, id, wait, less)
        assert not again.runs(id), f"{id} runs with {less}, {wait.lacking} was named"


def is_first_in_need(replay: Replay, call: int, id: str, wait: Wait) -> bool:
    """Whether nobody who is planned before it could use what it lacks: then it may come to all."""
    again = replay_to(replay, call + 1, 0) if call + 1 < len(replay.calls) else None
    if again is None or wait.phase not in ("waiting", "preempted"):
        return False
    needy = {
        request.label
        for request, deferral in again.engine.scheduler.deferrals.current.items()
        if deferral.reason is not DeferReason.BEHIND_HEAD
    }
    events = replay.calls[call].events
    read = {chunk[0] for event in events if event.kind == "step" for chunk in event.chunks}
    done = {event.id for event in events if event.kind in ("decoding", "finished")}
    return needy == {id} and read <= done


def give(again: Replay, id: str, wait: Wait, lack: Lack) -> None:
    """Add at the request's turn; to a new batch slots and blocks at the boundary."""
    if wait.phase == "decode" and lack.tokens:
        again.add_for_decodes(lack)
    elif again.scenario.engine.batching == "static":
        again.add(replace(lack, tokens=0))
        again.add_at_turn(id, Lack(tokens=lack.tokens))
    else:
        again.add_at_turn(id, lack)


def fewer(lack: Lack) -> list[Lack]:
    names = [name for name in ("slots", "tokens", "blocks") if getattr(lack, name)]
    return [replace(lack, **{name: getattr(lack, name) - 1}) for name in names]


def check_cooldown(replay: Replay, call: int, id: str, wait: Wait) -> None:
    """The next step considers it again, unless that one preempts too."""
    assert wait.victims
    if call + 1 >= len(replay.calls):
        return
    following = replay.calls[call + 1]
    preempts = any(event.kind == "preempted" for event in following.events)
    told = {event.id for event in following.deferred} | {
        event.id for event in following.events if event.kind in ("admitted", "finished")
    }
    assert preempts or not following.has_run or {id, sample_id(id, 0)} & told


def check_static(replay: Replay, call: int, wait: Wait) -> None:
    """Once the batch that it names has ended, somebody of the queue runs in that very step."""
    assert wait.usage is not None
    again = replay_to(replay, call, 0)
    for _, member in wait.usage.slots:
        again.engine.abort(member)
    result = again.step()
    assert any(event.kind == "admitted" for event in result.events)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_explanation_names_lets_the_request_run(seed):
    draw = Random(seed)
    replay = Replay(random_scenario(draw)).run()
    deferrals = deferrals_of(replay)

    for call, id, _ in draw.sample(deferrals, min(MAX_DEFERRALS, len(deferrals))):
        check(replay, call, id)


def test_every_reason_to_wait_is_among_those_explained():
    replays = [Replay(random_scenario(Random(seed))).run() for seed in SEEDS[:80]]
    events = [event for replay in replays for call in replay.calls for event in call.deferred]

    # docs/decisions/0011: the first two never bind. No step of these scenarios fails.
    never = {"tenant_share", "host_tier", "trial"}
    expected = {reason.value for reason in DeferReason} - never
    assert {event.reason for event in events} == expected
    assert all(any(lack) for lack in zip(*[_lack_of(event) for event in events], strict=True))


def _lack_of(event: Deferred) -> tuple[int, int, int]:
    return event.lacking_slots, event.lacking_tokens, event.lacking_blocks
