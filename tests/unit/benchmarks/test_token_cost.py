"""The benchmark of a token's cost runs: a real server, its clients, both threads' clocks."""

from tiny_model import write_model
from token_cost import costs_us

from everbatch.tokenizer.tokenizer import Tokenizer


def test_both_threads_have_a_cost(tmp_path):
    tokenizer = Tokenizer.from_path(write_model(tmp_path))

    # A second of steps: the last stream has that long to come while the first ones decode.
    loop_us, engine_us = costs_us(tokenizer, num_streams=3, num_steps=200, step_s=0.005)

    assert loop_us > 0
    assert engine_us > 0
