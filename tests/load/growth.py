"""Much traffic of every kind through one engine, and what it holds between two rounds of it.

    PYTHONPATH=tests python -m load.growth [SECONDS]

A round is the same kinds of requests with other tokens: greedy and drawn, with log probabilities,
penalties, forms, stop strings and several samples, too many for the KV blocks, so that some are
swapped out. After each, when nobody is left, it is counted what the process holds: blocks of
Python's allocator, bytes of the C heap, memory in RAM. Exit status 1 if one of them grew.
"""

import ctypes
import gc
import os
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import ClassVar

from load.watched import resident_bytes
from numpy.random import Generator, default_rng
from tiny_model import MAX_MODEL_LEN, write_model

from everbatch import LLM, SamplingParams, StructuredOutputsParams

SECONDS, SECONDS_BETWEEN_LINES = 600.0, 20.0
NUM_REQUESTS = 192
NUM_WARM = 10
"""Rounds until each size of a step, each form and each block has been used."""
GROWTH = 0.005
"""Of what is held; more is a leak, as a round brings as much traffic as the engine holds."""
OPTIONS = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 256,
    "block_size": 8,
    "num_blocks": 700,
    "num_host_blocks": 700,
    "preemption_mode": "swap",
    "admission": "now",
    "kernels": "native",
    "threads": 2,
}


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Give what malloc has given out and not got back: in its arenas, and mapped on its own."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


class Course:
    """What the process holds while nobody runs, round by round.

    In arrays, as what is noted would itself be among Python's blocks.
    """

    MEASURES: ClassVar[dict[str, Callable[[], int]]] = {
        "blocks of Python": sys.getallocatedblocks,
        "bytes of the heap": heap_bytes,
        "bytes in RAM": lambda: resident_bytes(os.getpid()),
    }

    def __init__(self) -> None:
        self._seen = {name: array("q") for name in self.MEASURES}

    def __len__(self) -> int:
        return len(self._seen["bytes in RAM"])

    def look(self) -> None:
        gc.collect()
        for name, measure in self.MEASURES.items():
            self._seen[name].append(measure())

    def last(self) -> str:
        return ", ".join(f"{seen[-1]:,} {name}" for name, seen in self._seen.items())

    def growth(self) -> dict[str, float]:
        """Give by how much each measure grew after the warm rounds, from their first third to the
        last, as a share of it."""
        found = {}
        for name, seen in self._seen.items():
            third = max(1, (len(seen) - NUM_WARM) // 3)
            first = median(seen[NUM_WARM : NUM_WARM + third])
            found[name] = median(seen[-third:]) / first - 1
        return found


def requests(draw: Generator) -> Iterator[tuple[list[int], SamplingParams]]:
    """Give a round: prompts of printable text, a third with the same beginning."""
    shared = draw.integers(32, 127, 60).tolist()
    for number in range(NUM_REQUESTS):
        prompt = draw.integers(32, 127, int(draw.integers(1, 120))).tolist()
        if number % 3 == 0:
            prompt = shared + prompt[:40]
        yield prompt, sampling(number, int(draw.integers(1, MAX_MODEL_LEN - 130)))


def sampling(number: int, max_tokens: int) -> SamplingParams:
    """Give options of every kind, by number."""
    form = None
    if number % 16 == 5:
        form = StructuredOutputsParams(regex=f"[a-z]{{1,{1 + number % 9}}}")
    return SamplingParams(
        temperature=number % 2,
        seed=number,
        top_p=0.9 if number % 4 == 1 else 1.0,
        top_k=20 if number % 8 == 3 else 0,
        repetition_penalty=1.2 if number % 5 == 0 else 1.0,
        logit_bias={65: 5.0} if number % 7 == 0 else None,
        logprobs=3 if number % 6 == 0 else None,
        n=2 if number % 8 == 1 else 1,
        stop=["the", "~"] if number % 9 == 0 else None,
        max_tokens=max_tokens,
        structured_outputs=form,
    )


def rounds(llm: LLM) -> Iterator[int]:
    """Run one round after another; give the tokens of each, consumed and made."""
    for number in count():
        prompts, params = zip(*requests(default_rng(number)), strict=True)
        answers = llm.generate([{"prompt_token_ids": one} for one in prompts], list(params))
        made = sum(len(one.token_ids) for answer in answers for one in answer.outputs)
        del answers
        yield made + sum(map(len, prompts))


def made_llm(folder: Path) -> LLM:
    """Give an engine with a tiny model, which is written to `folder`."""
    return LLM(str(write_model(folder / "model")), **OPTIONS)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    num_tokens, course, told_s = 0, Course(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        llm = made_llm(Path(folder))
        begun_s = time.monotonic()
        for of_round in rounds(llm):
            num_tokens += of_round
            course.look()
            now_s = time.monotonic() - begun_s
            if now_s - told_s > SECONDS_BETWEEN_LINES:
                told_s = now_s
                print(f"{now_s:5.0f} s, {num_tokens:11,} tokens: {course.last()}", flush=True)
            if now_s > seconds and len(course) > 2 * NUM_WARM:
                break
        preempted = llm.real.engine.stats().num_preemptions
    found = course.growth()
    print(f"{len(course):,} rounds, {num_tokens:,} tokens, {preempted:,} preemptions")
    print("grew by " + ", ".join(f"{name} {share:+.3%}" for name, share in found.items()))
    return int(any(share > GROWTH for share in found.values()))


if __name__ == "__main__":
    sys.exit(main())
