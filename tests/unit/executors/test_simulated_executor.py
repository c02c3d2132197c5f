"""The simulated executor: who stops when, and which ids a text has."""

from array import array
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from everbatch.base.clock import VirtualClock
from everbatch.costs.work import StepWork
from everbatch.engine.engine import EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.simulated import SimulatedExecutor, SimulatedText
from everbatch.scheduler.plan import Admission, PrefillChunk, StepPlan


def request(output_tokens: int) -> EngineRequest:
    text = SimulatedText((range(4), range(100, 100 + output_tokens)), output_tokens)
    return EngineRequest("a", text, 4, SamplingParams(max_tokens=50))


def admission(slot: int, payload: EngineRequest, num_outputs: int = 0) -> Admission:
    return Admission(slot, "a", payload, 0, (), num_outputs)


def chunk(slot: int, *, emits: bool) -> PrefillChunk:
    return PrefillChunk(slot, 0, 4, (), emits)


class SevenATokenAndOne:
    """A step time that tells passes apart."""

    def duration_ns(self, work: StepWork) -> int:
        return 7 * work.num_tokens + 1


def works_of(executor: SimulatedExecutor, *plans: StepPlan) -> list[StepWork]:
    works = []
    for plan in plans:
        executor.execute(plan)
        works.append(replace(executor.work))
    return works


def stops(executor: SimulatedExecutor, *plans: StepPlan) -> list[list[int]]:
    return [executor.execute(plan).stopped for plan in plans]


def test_a_text_ends_in_the_pass_of_its_last_output():
    executor = SimulatedExecutor(VirtualClock())
    first = StepPlan(1, 0, [chunk(2, emits=True)], [admission(2, request(3))])

    assert stops(
        executor, first, StepPlan(2, 1, joined=[2], num_decodes=1), StepPlan(3, 2, num_decodes=1)
    ) == [[], [], [2]]


def test_a_text_of_one_output_ends_in_its_prefill():
    executor = SimulatedExecutor(VirtualClock())

    assert stops(executor, StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, request(1))])) == [
        [0]
    ]


def test_steps_out_of_the_decode_set_do_not_count():
    executor = SimulatedExecutor(VirtualClock())

    assert stops(
        executor,
        StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, request(4))]),
        StepPlan(2, 1, joined=[0], num_decodes=1),
        StepPlan(3, 2, left=[0]),
        StepPlan(4, 3),
        StepPlan(5, 4, joined=[0], num_decodes=1),
        StepPlan(6, 5, num_decodes=1),
    ) == [[], [], [], [], [], [0]]


def test_a_rebuilt_text_goes_on_where_it_was():
    executor = SimulatedExecutor(VirtualClock())
    text = request(4)

    assert stops(
        executor,
        StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, text)]),
        StepPlan(2, 1, joined=[0], num_decodes=1),
        StepPlan(3, 2, preempted=[0], released=[0]),
        StepPlan(4, 3, [chunk(1, emits=False)], [admission(1, text, num_outputs=2)]),
        StepPlan(5, 4, joined=[1], num_decodes=1),
        StepPlan(6, 5, num_decodes=1),
    ) == [[], [], [], [], [], [1]]


def test_a_slot_released_before_its_end_never_stops():
    executor = SimulatedExecutor(VirtualClock())

    assert stops(
        executor,
        StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, request(3))]),
        StepPlan(2, 1, joined=[0], num_decodes=1),
        StepPlan(3, 2, released=[0]),
    ) == [[], [], []]


def test_a_pass_moves_the_clock_by_what_it_takes():
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, SevenATokenAndOne())

    stops(
        executor,
        StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, request(9))]),
        StepPlan(2, 29, joined=[0], num_decodes=1),
    )

    assert clock.now_ns() == (7 * 4 + 1) + (7 + 1)


def test_the_work_of_decodes_grows_with_their_context():
    executor = SimulatedExecutor(VirtualClock())
    works = works_of(
        executor,
        StepPlan(1, 0, [chunk(0, emits=True)], [admission(0, request(9))]),
        StepPlan(
            2, 1, [chunk(1, emits=True)], [admission(1, request(9))], joined=[0], num_decodes=1
        ),
        StepPlan(3, 2, joined=[1], num_decodes=2, masked=[7]),
        StepPlan(4, 3, left=[0], num_decodes=1),
        StepPlan(5, 4, joined=[0], num_decodes=2),
    )

    # Prompts of 4: the token that a decode consumes is read too. A masked row reads its own.
    assert [(work.num_decodes, work.decode_context) for work in works] == [
        (0, 0),
        (1, 5),
        (3, 6 + 5 + 1),
        (1, 6),
        (2, 7 + 7),
    ]
    assert [work.num_logits for work in works] == [1, 2, 3, 1, 2]


def test_the_work_of_chunks_is_what_they_compute_and_read():
    executor = SimulatedExecutor(VirtualClock())
    first = PrefillChunk(0, 4, 3, (), emits=False)
    last = PrefillChunk(0, 7, 2, (), emits=True, followers=(1,))
    cached = [Admission(slot, "a", request(9), 4, (9,), 0, slot) for slot in (0, 1)]
    works = works_of(
        executor,
        StepPlan(1, 0, [first], cached, copies=[(0, 1, 2)], swap_out=[(1, 1)], swap_in=[(2, 2)]),
        StepPlan(2, 1, [last]),
        StepPlan(3, 2, joined=[0, 1], num_decodes=2),
    )

    assert works[0] == StepWork(0, 0, 1, 3, 7, 3 * 4 + 6, 0, 2, 1)
    # The samples share the row whose logits they sample from.
    assert works[1] == StepWork(0, 0, 1, 2, 9, 2 * 7 + 3, 1)
    assert works[2] == StepWork(2, 20, num_logits=2)


def ids_in(block: bytes) -> list[int]:
    """Take what was read apart: ids that are not negative, and (first, count) of runs of others."""
    words, ids = iter(array("i", block)), []
    for word in words:
        ids += range(word, word + next(words)) if word < 0 else [word]
    return ids


PIECES = (array("i", [50, 60, 70]), range(-9, -5), range(-5, -2), array("i", [7]), range(-9, -4))


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8, 16])
def test_a_text_is_read_across_its_pieces(block_size):
    ids = [token for piece in PIECES for token in piece]
    num_blocks = len(ids) // block_size

    for start in range(num_blocks + 1):
        for stop in range(start, num_blocks + 1):
            blocks = SimulatedText(PIECES, 4).read(range(start, stop), block_size)

            assert [token for block in blocks for token in ids_in(block)] == ids[
                start * block_size : stop * block_size
            ]
            assert all(len(ids_in(block)) == block_size for block in blocks)


def test_equal_ids_are_equal_bytes_however_they_are_cut():
    ids = [*range(-20, -4), 3, 4, 5, *range(-9, -4)]
    draw = Random(1)
    whole = SimulatedText((range(-20, -4), array("i", [3, 4, 5]), range(-9, -4)), 1)
    for _ in range(50):
        cuts = sorted({0, 16, 19, 24, *(draw.randrange(24) for _ in range(4))})
        parts = [ids[start:stop] for start, stop in pairwise(cuts)]
        pieces = [
            range(part[0], part[-1] + 1) if part[0] < 0 else array("i", part) for part in parts
        ]
        for block_size in (2, 3, 8, 24):
            blocks = range(24 // block_size)
            assert whole.read(blocks, block_size) == SimulatedText((*pieces,), 1).read(
                blocks, block_size
            )


def test_samples_read_their_own_outputs():
    text = SimulatedText((range(-8, -4), range(-4, -2)), 2, (range(-2, 0),))

    assert text.read(range(3), 2, 0)[:2] == text.read(range(3), 2, 1)[:2]
    assert ids_in(text.read(range(2, 3), 2, 0)[0]) == [-4, -3]
    assert ids_in(text.read(range(2, 3), 2, 1)[0]) == [-2, -1]


def test_reading_beyond_a_text_is_a_bug():
    with pytest.raises(AssertionError):
        SimulatedText((range(-4, 0),), 1).read(range(1, 3), 2)


def test_a_run_of_ids_that_could_be_written_is_a_bug():
    with pytest.raises(AssertionError):
        SimulatedText((range(-2, 2),), 1).read(range(1), 4)
