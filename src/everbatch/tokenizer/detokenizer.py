"""Text that grows token by token.

Belongs here: turning the tokens of one request into text that can be sent at once. Not here: stop
strings (stop.py), text of a whole list of ids (tokenizer.py). Used by text_stream.py.

A token is a few bytes, and a character may lie across tokens: an emoji is often three. So bytes go
through an incremental UTF-8 decoder, which keeps back the beginning of a character and gives U+FFFD
as soon as the bytes at hand can no longer become one. Each token costs O(its bytes), whatever came
before; peers that decode a window of tokens again pay for the window (vLLM, DecodeStream).
"""

import codecs

from everbatch.tokenizer.tokenizer import Tokenizer

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one request so far, in pieces; joined they equal `Tokenizer.decode` of all ids.

    skip_special_tokens: leave markup out. at_start: the tokens begin a text and do not continue a
    prompt, so that the space which SentencePiece puts in front goes away.
    """

    __slots__ = ("_decode", "_skipped", "_strip_space", "_token_bytes")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, at_start: bool = False
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decode = _new_utf8_decoder(errors="replace").decode
        self._strip_space = at_start and tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        """Give the text that `token_id` completes, "" while a character is unfinished."""
        if token_id in self._skipped:
            return ""
        text = self._decode(self._token_bytes(token_id))
        return self._without_first_space(text) if self._strip_space else text

    def finish(self) -> str:
        """Give U+FFFD for a character that will not be finished, else "". Nothing comes after."""
        text = self._decode(b"", True)
        return self._without_first_space(text) if self._strip_space else text

    def _without_first_space(self, text: str) -> str:
        if text:
            self._strip_space = False
        return text.removeprefix(" ")
