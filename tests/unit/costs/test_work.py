"""StepWork counts what a pass reads and multiplies."""

from everbatch.costs.work import StepWork


def test_a_chunk_attends_to_what_is_cached_and_causally_to_itself() -> None:
    work = StepWork(num_decodes=3, decode_context=156)

    work.add_chunk(start=0, count=4)
    work.add_chunk(start=10, count=2)

    assert work.prefill_pairs == (1 + 2 + 3 + 4) + (11 + 12)
    assert (work.num_chunks, work.prefill_tokens, work.prefill_context) == (2, 6, 16)
    assert work.num_tokens == 9
