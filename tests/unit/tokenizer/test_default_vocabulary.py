"""The default model's own vocabulary, against ids made without everbatch.

The expected ids come from the tokenizers library with the file's tokens and merges, and the rules
that llama.cpp has for "smollm" (llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM): digits one by one,
then GPT-2's expression. transformers 5 reads the GGUF file without the digit rule and gives other
ids, for example for digits after two spaces.
"""

from functools import cache

import pytest

from everbatch.assemble.model_source import resolve_model
from everbatch.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.model

CASES: dict[str, list[int]] = {
    "Hello  world": [19556, 216, 905],
    "1 2  3   4    5": [33, 216, 34, 256, 35, 333, 36, 289, 37],
    "year 2024-12-31, 3.14159 and 1,000,000": [
        3610,
        216,
        34,
        32,
        34,
        36,
        29,
        33,
        34,
        29,
        35,
        33,
        28,
        216,
        35,
        30,
        33,
        36,
        33,
        37,
        41,
        284,
        216,
        33,
        28,
        32,
        32,
        32,
        28,
        32,
        32,
        32,
    ],
    "\n\n\t x\r\n  y\n": [14436, 1792, 23799, 329, 198],
    "def f(x):\n    return x + 1  # 42\n": [
        1604,
        275,
        24,
        104,
        727,
        472,
        1003,
        1792,
        1232,
        216,
        33,
        216,
        907,
        216,
        36,
        34,
        198,
    ],
    "漢字かな 한국어 ½": [
        177,
        137,
        112,
        36518,
        7365,
        229,
        7365,
        120,
        216,
        33085,
        246,
        181,
        130,
        251,
        183,
        240,
        129,
        216,
        16738,
    ],
    "😀 👩‍👧 🇯🇵": [
        10813,
        242,
        218,
        15107,
        235,
        119,
        321,
        231,
        10813,
        235,
        117,
        15107,
        225,
        124,
        10813,
        225,
        130,
    ],
    "I'm sure you'll DON'T": [57, 5248, 2090, 346, 3060, 422, 2154, 23, 68],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "e\u0301 \u00e9 \u00a0\u3000": [85, 151, 219, 26411, 3351, 250, 12109, 218],
}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_path(resolve_model(None).path)


@pytest.mark.parametrize("text", CASES)
def test_ids_are_those_of_the_rules_for_smollm(text):
    assert CASES[text] == tokenizer().encode(text)
    assert text == tokenizer().decode(CASES[text], skip_special_tokens=False)


def test_markup_and_ends():
    assert tokenizer().vocab_size == 49_152
    assert (
        tokenizer().bos_token_id,
        tokenizer().eos_token_id,
        tokenizer().eos_token_ids,
    ) == (1, 2, (2,))
    assert set(range(17)) == tokenizer().special_ids


def test_every_token_has_bytes_and_spells_its_text():
    empty = [i for i in range(tokenizer().vocab_size) if not tokenizer().token_bytes(i)]

    assert empty == []
