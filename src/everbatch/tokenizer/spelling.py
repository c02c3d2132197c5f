"""How a vocabulary spells bytes: from a token's written form to the exact bytes it stands for.

Belongs here: the two spellings that everbatch reads, and telling them apart by a tokenizer's
decoder. Not here: text to ids (tokenizer.py), bytes to text (detokenizer.py). Used by tokenizer.py.

    byte level      every byte is one printable character ("Ġthe" is b" the")   gpt-2, llama 3, qwen
    sentence piece  UTF-8 with "▁" for a space, "<0x0A>" for a byte             llama 2, mistral

Covered: decoders ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and Strip as
SentencePiece models have them. Not covered: WordPiece and CTC; refused by name.
"""

import json
import re
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from everbatch.base.errors import UnsupportedModel

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Protocol):
    """Turns the written form of a token into bytes."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space is an artefact of encoding and not part of the text."""

    def to_bytes(self, token: str) -> bytes:
        """Give the bytes that `token` stands for."""

    def added_to_bytes(self, content: str) -> bytes:
        """Give the bytes of a token that was added to the vocabulary and is not markup."""


class ByteLevelSpelling:
    """GPT-2's spelling: printable bytes stand for themselves, the others for U+0100 and up.
    Source: GPT-2, encoder.py, bytes_to_unicode."""

    strips_leading_space = False

    def __init__(self) -> None:
        self._byte_of = {char: byte for byte, char in byte_level_alphabet().items()}

    def to_bytes(self, token: str) -> bytes:
        """Give the bytes of `token`; a token with characters outside the alphabet is UTF-8."""
        byte_of = self._byte_of
        if all(char in byte_of for char in token):
            return bytes([byte_of[char] for char in token])
        return token.encode("utf-8")

    def added_to_bytes(self, content: str) -> bytes:
        """Give `content` as it is: added tokens are matched in the text before bytes are spelt."""
        return content.encode("utf-8")


class SentencePieceSpelling:
    """SentencePiece's spelling: `mark` is a space; "<0xNN>" is one byte if `byte_fallback`."""

    def __init__(self, *, mark: str, byte_fallback: bool, strips_leading_space: bool) -> None:
        self.strips_leading_space = strips_leading_space
        self._mark = mark
        self._byte_fallback = byte_fallback

    def to_bytes(self, token: str) -> bytes:
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(self._mark, " ").encode("utf-8")

    def added_to_bytes(self, content: str) -> bytes:
        """Give `content` with spaces for marks, as in Gemma's added runs of spaces."""
        return content.replace(self._mark, " ").encode("utf-8")


def byte_level_alphabet() -> dict[int, str]:
    """Map each of the 256 bytes to the character that spells it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    for index, byte in enumerate(others):
        alphabet[byte] = chr(0x100 + index)
    return alphabet


def spelling_of(backend: Backend) -> Spelling:
    """Read off the decoder of `backend` how its tokens spell bytes.
    Raises UnsupportedModel naming a decoder that is neither byte level nor SentencePiece's."""
    if backend.decoder is None:
        raise UnsupportedModel(
            "the tokenizer has no decoder; everbatch reads byte-level and SentencePiece "
            "vocabularies"
        )
    return _spelling_of_parts(_flatten(json.loads(backend.decoder.__getstate__())))


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flatten(inner)]


def _spelling_of_parts(parts: list[dict[str, Any]]) -> Spelling:
    types = [part["type"] for part in parts]
    if "ByteLevel" in types and set(types) <= {"ByteLevel", "Fuse"}:
        return ByteLevelSpelling()
    mark: str | None = None
    byte_fallback, strips = False, False
    for part in parts:
        match part:
            case {"type": "Metaspace", "replacement": str(replacement), "prepend_scheme": scheme}:
                mark = replacement
                strips = strips or scheme != "never"
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": " "}:
                mark = pattern
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                strips = strips or start == 1
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case _:
                raise UnsupportedModel(f"the tokenizer's decoder {part['type']} is not supported")
    if mark is None:
        raise UnsupportedModel(f"the tokenizer's decoder {' + '.join(types)} is not supported")
    return SentencePieceSpelling(
        mark=mark, byte_fallback=byte_fallback, strips_leading_space=strips
    )
