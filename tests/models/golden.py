"""Reads the golden text and says whether a produced text is the oracle's.

The golden text is what transformers answers greedily, in float32, one prompt at a time; see
scripts/make_golden.py, which writes tests/golden/golden_small.json and golden_full.json. Belongs
here: the file's format for readers and the rule of comparison. Not here: running any model. Used by
the tests of models and engines, and by make_golden.py --check.

The rule: where the oracle's two largest logits differ by less than NEAR_TIE, rounding decides, so
either token is right. After the other one was chosen the texts go apart, so that the rest of this
prompt is not compared; a Comparison tells how often that happened.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEAR_TIE = 1e-4  # logits; below this float32 sums in another order may swap the two top tokens
FORMAT_VERSION = 1
GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """One prompt and the oracle's answer, whose tokens go on after an end-of-sequence token.

    `gaps[i]` is the distance of the two largest logits behind output token i, cut (not rounded) to
    three digits; `runner_up[i]` the token that came second, given where the gap is below 1e-3.
    """

    name: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    gaps: tuple[float, ...]
    runner_up: dict[int, int]
    eos_positions: tuple[int, ...]

    def allows(self, position: int, token_id: int) -> bool:
        """Tell whether the token is as good as the oracle's at this output position."""
        if token_id == self.output_token_ids[position]:
            return True
        return self.gaps[position] < NEAR_TIE and self.runner_up[position] == token_id


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where one produced text left the golden one."""

    prompt_name: str
    position: int
    expected_token_id: int
    produced_token_id: int | None  # None: the produced text ended here
    gap: float
    allowed: bool

    def __str__(self) -> str:
        produced = "nothing" if self.produced_token_id is None else self.produced_token_id
        verdict = "allowed, a near tie" if self.allowed else "wrong"
        return (
            f"{self.prompt_name}: output token {self.position} is {produced}, the oracle's is "
            f"{self.expected_token_id}, its two top logits differ by {self.gap:g} ({verdict})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing produced with golden texts gave; `differences` has at most one a prompt."""

    num_prompts: int
    num_tokens_compared: int
    num_tokens_expected: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether every token is the oracle's."""
        return not self.differences

    @property
    def allowed(self) -> bool:
        """Whether every difference is a near tie of the oracle's; true also if there is none."""
        return all(difference.allowed for difference in self.differences)

    @property
    def first_difference(self) -> Difference | None:
        """The first wrong token, or else the first allowed difference, or None."""
        wrong = [difference for difference in self.differences if not difference.allowed]
        return next(iter([*wrong, *self.differences]), None)

    @property
    def num_prompts_cut(self) -> int:
        """How many prompts were compared only up to a near tie."""
        return sum(difference.allowed for difference in self.differences)

    def summary(self) -> str:
        """Give one paragraph for a test's message: counts, then each difference on its line."""
        head = (
            f"{self.num_tokens_compared} of {self.num_tokens_expected} tokens of "
            f"{self.num_prompts} prompts compared, {self.num_prompts_cut} prompts cut at a near tie"
        )
        return "\n  ".join([head, *map(str, self.differences)])


def load(name: str) -> list[GoldenPrompt]:
    """Read tests/golden/golden_NAME.json; `name` is "small" (12 prompts) or "full" (50)."""
    document = load_document(name)
    return [_parse_prompt(fields) for fields in document["prompts"]]


def load_document(name: str) -> dict[str, Any]:
    """Read the whole file: "model" and "oracle" say what made it, "prompts" holds the answers."""
    document: dict[str, Any] = json.loads(
        (GOLDEN_DIR / f"golden_{name}.json").read_text(encoding="utf-8")
    )
    version = document["format_version"]
    if version != FORMAT_VERSION:
        raise ValueError(
            f"golden_{name}.json has format version {version}, this reader knows {FORMAT_VERSION}: "
            "make it anew with scripts/make_golden.py"
        )
    return document


def compare(
    golden: Sequence[GoldenPrompt],
    produced: Sequence[Sequence[int]],
    *,
    num_tokens: int | None = None,
) -> Comparison:
    """Compare produced output token ids, one list a golden prompt in the same order.

    Only the first `num_tokens` of each golden output count, if given. A text that is too short is
    a difference; one that is too long is the caller's mistake and raises ValueError.
    """
    if len(golden) != len(produced):
        raise ValueError(f"{len(golden)} golden prompts, but {len(produced)} produced texts")
    num_compared = 0
    num_expected = 0
    differences = []
    for prompt, token_ids in zip(golden, produced, strict=True):
        expected = prompt.output_token_ids[:num_tokens]
        if len(token_ids) > len(expected):
            raise ValueError(
                f"{prompt.name}: {len(token_ids)} tokens produced, only {len(expected)} are "
                "expected: cut the text or pass num_tokens"
            )
        num_expected += len(expected)
        difference = _first_difference(prompt, expected, token_ids)
        if difference is None:
            num_compared += len(expected)
        else:
            num_compared += difference.position + 1
            differences.append(difference)
    return Comparison(len(golden), num_compared, num_expected, tuple(differences))


def _first_difference(
    prompt: GoldenPrompt, expected: Sequence[int], token_ids: Sequence[int]
) -> Difference | None:
    for position, expected_id in enumerate(expected):
        produced_id = int(token_ids[position]) if position < len(token_ids) else None
        if produced_id == expected_id:
            continue
        allowed = produced_id is not None and prompt.allows(position, produced_id)
        gap = prompt.gaps[position]
        return Difference(prompt.name, position, expected_id, produced_id, gap, allowed)
    return None


def _parse_prompt(fields: dict[str, Any]) -> GoldenPrompt:
    return GoldenPrompt(
        name=fields["name"],
        prompt_token_ids=tuple(fields["prompt_token_ids"]),
        output_token_ids=tuple(fields["output_token_ids"]),
        gaps=tuple(fields["gaps"]),
        runner_up={int(position): token_id for position, token_id in fields["runner_up"].items()},
        eos_positions=tuple(fields["eos_positions"]),
    )
