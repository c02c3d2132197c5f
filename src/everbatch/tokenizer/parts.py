"""What a tokenizer is made of, whichever kind of file it was read from.

Belongs here: the value that the readers (files.py, gguf_vocab.py) hand to tokenizer.py.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A vocabulary with its rules. special_ids: tokens that are markup, not text.
    eos_token_ids: every token that ends an answer, `eos_token_id` first if there is one.
    chat_template: jinja2 source, None if the model has none."""

    backend: Backend
    special_ids: frozenset[int]
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None


def surround(
    backend: Backend, first: int | None, last: int | None
) -> processors.TemplateProcessing | None:
    """Give the post-processor that puts the token `first` before and `last` after a text."""
    tokens = {i: backend.id_to_token(i) for i in (first, last) if i is not None}
    if not tokens:
        return None
    before = [] if first is None else [tokens[first]]
    after = [] if last is None else [tokens[last]]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(token, index) for index, token in tokens.items()],
    )
