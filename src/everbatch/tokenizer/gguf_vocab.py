"""Tokenizers out of GGUF metadata.

Belongs here: the keys `tokenizer.*` of a GGUF header and what they mean. Not here: the header's
layout (base/gguf_header.py), the rules behind a pre-tokenizer's name (pre_tokenizers.py). Used by
tokenizer.py.

Covered: model "gpt2" (byte-level BPE with merges) and "llama" (SentencePiece BPE, whose merges are
implied by the scores). Not covered: "t5" (unigram), "bert" (word piece), "rwkv" and others; refused
by name. Source: ggml, docs/gguf.md; llama.cpp, llama-vocab.cpp.
"""

from collections.abc import Mapping
from enum import IntEnum

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.tokenizer.parts import TokenizerParts, surround
from everbatch.tokenizer.pre_tokenizers import pre_tokenization
from everbatch.tokenizer.spelling import SPACE_MARK

# Files made before the key `eot_token_id` existed name only the end of a document, which a chat
# model does not write, so the end of a turn is found by its name. Source: llama-vocab.cpp.
_END_OF_TURN_NAMES = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")


MAX_COPIED_CHARS = 1 << 30
"""Llama 2's 32,000 pieces need 1.3 million; as many as this take a second."""


class TokenType(IntEnum):
    """Kinds of tokens in `tokenizer.ggml.token_type`. Source: llama.h, llama_token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def parts_from_gguf(metadata: Mapping[str, object]) -> TokenizerParts:
    """Build a tokenizer from the metadata of a GGUF file.
    Raises UnsupportedModel for a kind of vocabulary that everbatch does not read, ModelLoadError
    for one that is incomplete or contradicts itself; both name the key."""
    keys = _Keys(metadata)
    kind = keys.text("tokenizer.ggml.model")
    if kind == "gpt2":
        backend, add_bos = _byte_level(keys)
    elif kind == "llama":
        backend, add_bos = _sentence_piece(keys)
    else:
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {kind!r}; everbatch reads 'gpt2' (byte-level BPE) and "
            "'llama' (SentencePiece BPE)"
        )
    tokens, types = keys.tokens, keys.types()
    _mark_added(backend, tokens, types)
    bos, eos = keys.token_id("bos"), keys.token_id("eos")
    backend.post_processor = surround(
        backend,
        bos if keys.flag("add_bos_token", default=add_bos) else None,
        eos if keys.flag("add_eos_token", default=False) else None,
    )
    special = [index for index, kind in enumerate(types) if kind in _SPECIAL]
    return TokenizerParts(
        backend=backend,
        special_ids=frozenset(special),
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=_ends(keys, eos),
        chat_template=keys.template(),
    )


_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)


class _Keys:
    """Typed access to the metadata; every failure names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = self.strings("tokenizer.ggml.tokens")

    def text(self, key: str) -> str:
        value = self._metadata.get(key)
        if not isinstance(value, str):
            raise ModelLoadError(f"the GGUF file's {key} must be a string, it is {value!r}")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelLoadError(f"the GGUF file's {key} must be a list of strings")
        return value

    def types(self) -> list[int]:
        """One kind a token; all are normal where the file does not say."""
        kinds = self._numbers("token_type", TokenType.NORMAL)
        if not all(isinstance(kind, int) for kind in kinds):
            raise ModelLoadError("the GGUF file's tokenizer.ggml.token_type is no list of integers")
        return [int(kind) for kind in kinds]

    def scores(self) -> list[float]:
        if "tokenizer.ggml.scores" not in self._metadata:
            raise ModelLoadError("the GGUF file's tokenizer.ggml.scores is missing")
        return self._numbers("scores", 0.0)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise ModelLoadError(f"the GGUF file's tokenizer.ggml.{name} is not a boolean")
        return value

    def token_id(self, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelLoadError(
                f"the GGUF file's {key} is {value!r}, the vocabulary has {len(self.tokens):,} "
                "tokens"
            )
        return value

    def pre(self) -> str:
        return self.text("tokenizer.ggml.pre")

    def template(self) -> str | None:
        value = self._metadata.get("tokenizer.chat_template")
        if value is None:
            value = self._metadata.get("tokenizer.chat_template.default")
        if value is not None and not isinstance(value, str):
            raise ModelLoadError("the GGUF file's tokenizer.chat_template is not a string")
        return value

    def _numbers(self, name: str, default: float) -> list[float]:
        key, count = f"tokenizer.ggml.{name}", len(self.tokens)
        value = self._metadata.get(key)
        if value is None:
            return [default] * count
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise ModelLoadError(f"the GGUF file's {key} must be a list of numbers")
        if len(value) != count:
            raise ModelLoadError(
                f"the GGUF file's {key} has {len(value):,} entries, the vocabulary {count:,}"
            )
        return value


def _byte_level(keys: _Keys) -> tuple[Backend, bool]:
    """The tokenizer and whether it puts bos first where the file does not say."""
    rules = pre_tokenization(keys.pre())
    merges = [_pair(merge) for merge in keys.strings("tokenizer.ggml.merges")]
    backend = _with_model(_vocabulary(keys.tokens), merges, ignore_merges=rules.ignore_merges)
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.build()
    backend.decoder = decoders.ByteLevel()
    return backend, rules.add_bos


def _sentence_piece(keys: _Keys) -> tuple[Backend, bool]:
    """The tokenizer, and True: SentencePiece models put bos first where the file does not say."""
    tokens, types, scores = keys.tokens, keys.types(), keys.scores()
    vocabulary = _vocabulary(tokens)
    pieces = {
        token: score
        for token, kind, score in zip(tokens, types, scores, strict=True)
        if kind == TokenType.NORMAL
    }
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == _SPECIAL[1]]
    backend = _with_model(
        vocabulary,
        _implied_merges(pieces, vocabulary),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    add_prefix = keys.flag("add_space_prefix", default=True)
    # The prefix comes after every special token and not only at the start, as in llama.cpp,
    # llama_vocab::impl::tokenize: a GGUF file does not say which of the two its model learnt.
    prefix = [normalizers.Prepend(SPACE_MARK)] if add_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE_MARK)])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE_MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1 if add_prefix else 0, 0),
        ]
    )
    return backend, True


def _with_model(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: object
) -> Backend:
    for left, right in merges:
        for piece in (left, right, left + right):
            if piece not in vocabulary:
                raise ModelLoadError(
                    f"the GGUF file merges {left!r} and {right!r}, but {piece!r} is no token"
                )
    return Backend(models.BPE(vocabulary, merges, **options))


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in vocabulary:
            raise ModelLoadError(
                f"the GGUF file's tokens {vocabulary[token]} and {index} are both {token!r}"
            )
        vocabulary[token] = index
    return vocabulary


def _pair(merge: str) -> tuple[str, str]:
    """Cut a merge at its space; one at the start belongs to the left part."""
    cut = merge.find(" ", 1)
    if cut < 0 or cut + 1 == len(merge):
        raise ModelLoadError(f"the GGUF file's tokenizer.ggml.merges holds {merge!r}: no pair")
    return merge[:cut], merge[cut + 1 :]


def _implied_merges(pieces: dict[str, float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """List every way to put a piece together from two, in the order SentencePiece prefers.
    It merges the neighbours whose joint piece scores highest. Source: sentencepiece,
    bpe_model.cc."""
    ranked: list[tuple[float, int, int, int]] = []
    # Cutting a piece everywhere copies it once for each character.
    num_copied = sum(len(piece) ** 2 for piece in pieces)
    if num_copied > MAX_COPIED_CHARS:
        longest = max(map(len, pieces))
        raise ModelLoadError(
            "the GGUF file's tokens are too long to find their merges (the longest has "
            f"{longest:,} characters): the file is damaged, or no model: download it again"
        )
    for piece, score in pieces.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                left, right = vocabulary[piece[:cut]], vocabulary[piece[cut:]]
                ranked.append((-score, vocabulary[piece], left, right))
    tokens = list(vocabulary)
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(ranked)]


def _mark_added(backend: Backend, tokens: list[str], types: list[int]) -> None:
    """Have control and user-defined tokens matched in the raw text, before anything else."""
    special = [tokens[index] for index, kind in enumerate(types) if kind in _SPECIAL]
    user_defined = [
        tokens[index] for index, kind in enumerate(types) if kind == TokenType.USER_DEFINED
    ]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])


def _ends(keys: _Keys, eos: int | None) -> tuple[int, ...]:
    ends = [eos, keys.token_id("eot"), keys.token_id("eom")]
    if keys.token_id("eot") is None:
        types = keys.types()
        ends += [
            index
            for index, token in enumerate(keys.tokens)
            if token in _END_OF_TURN_NAMES and types[index] == TokenType.CONTROL
        ]
    return tuple(dict.fromkeys(end for end in ends if end is not None))
