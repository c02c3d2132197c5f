"""Text to token ids and back.

Belongs here: `Tokenizer`, the one object through which the rest of everbatch sees a vocabulary. Not
here: reading it from files (files.py, gguf_vocab.py), text that grows token by token
(detokenizer.py), chat templates (chat_template.py). Used by assemble, the server and the Python
API.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from everbatch.base.errors import InvalidRequest, ModelLoadError
from everbatch.base.gguf_header import read_gguf_metadata
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.files import parts_from_directory
from everbatch.tokenizer.gguf_vocab import parts_from_gguf
from everbatch.tokenizer.panics import panics_are
from everbatch.tokenizer.parts import TokenizerParts
from everbatch.tokenizer.spelling import Spelling, spelling_of


class Tokenizer:
    """A model's vocabulary. Safe to use from several threads; `encode` releases the GIL.

    Special tokens written out in a text are read as the tokens they name, as vLLM and transformers
    do: a user who writes "<|im_end|>" into a message ends it. Whoever must not allow that has to
    look for them in the text first (`special_tokens`).

    `decode` and `token_bytes` agree: the bytes of a text are the bytes of its tokens put together,
    and what is not UTF-8 becomes U+FFFD, one for each maximal broken part (Unicode 16, section
    3.9.6). For text that broken byte tokens interrupt, transformers differs: it replaces also the
    valid characters beside the broken bytes, which a stream could not take back.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.special_ids = parts.special_ids
        self._backend = parts.backend
        self._spelling = spelling_of(parts.backend)
        added = parts.backend.get_added_tokens_decoder()
        self.vocab_size = max(
            parts.backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1
        )
        self._bytes = _BytesById(parts, self._spelling, self.vocab_size)
        self.chat_template = ChatTemplate(
            parts.chat_template,
            bos_token=self._written(parts.bos_token_id),
            eos_token=self._written(parts.eos_token_id),
        )

    @classmethod
    def from_path(cls, path: Path) -> "Tokenizer":
        """Load the tokenizer of a model: a directory, or a .gguf file.
        Raises ModelLoadError naming the file and what is wrong with it."""
        if not path.is_dir():
            return cls.from_gguf_metadata(read_gguf_metadata(path))
        with panics_are(_broken):
            return cls(parts_from_directory(path))

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Build the tokenizer from a GGUF header that was read already."""
        with panics_are(_broken):
            return cls(parts_from_gguf(metadata))

    @property
    def strips_leading_space(self) -> bool:
        """Whether encoding puts a space before a text that decoding takes away."""
        return self._spelling.strips_leading_space

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Give the ids of `text`, with bos or eos around it where the model wants them.
        Raises InvalidRequest when the text holds half of a surrogate pair, or is one at which a
        broken vocabulary breaks."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise InvalidRequest(
                f"the text is not valid Unicode: character {error.start} is the lone surrogate "
                f"U+{code:04X}; send UTF-8, or both halves of the pair"
            ) from error
        # The batch call lets other threads run meanwhile, the plain one does not (tokenizers 0.23).
        with panics_are(_cannot_encode):
            [encoding] = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        return encoding.ids

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        at_start: bool = True,
    ) -> str:
        """Give the text of `token_ids`. With `at_start` false they continue a text, so that the
        space in front stays; it matters to SentencePiece vocabularies only."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        table = self._bytes
        raw = b"".join([table[i] for i in token_ids if i not in skipped])
        text = raw.decode("utf-8", errors="replace")
        if at_start and self._spelling.strips_leading_space:
            return text.removeprefix(" ")
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Give the exact bytes of a token, not always valid UTF-8 by themselves.
        An id that the vocabulary does not fill has none: models pad their vocabulary, and may be
        made to emit such an id."""
        return self._bytes[token_id]

    def _written(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._backend.id_to_token(token_id)


def _broken(problem: str) -> ModelLoadError:
    return ModelLoadError(f"the model's tokenizer is broken ({problem}): download it again")


def _cannot_encode(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the model's tokenizer cannot encode this text: {problem}")


class _BytesById(dict[int, bytes]):
    """The bytes of tokens, spelt when first asked for: all 150,000 of a vocabulary take 0.3 s."""

    def __init__(self, parts: TokenizerParts, spelling: Spelling, vocab_size: int) -> None:
        super().__init__()
        self._id_to_token = parts.backend.id_to_token
        self._special_ids = parts.special_ids
        self._added = {
            index: token.content
            for index, token in parts.backend.get_added_tokens_decoder().items()
        }
        self._spelling = spelling
        self._vocab_size = vocab_size

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._vocab_size:
            # Not kept, so that ids without a token cannot fill the memory.
            return b""
        spelt = self[token_id] = self._spell(token_id)
        return spelt

    def _spell(self, token_id: int) -> bytes:
        content = self._added.get(token_id)
        if content is None:
            token = self._id_to_token(token_id)
            return b"" if token is None else self._spelling.to_bytes(token)
        if token_id in self._special_ids:
            return content.encode("utf-8")
        return self._spelling.added_to_bytes(content)
