"""Pre-tokenizers of GGUF vocabularies: what a name in `tokenizer.ggml.pre` stands for.

Belongs here: the table of names, and building the splitter. A GGUF file holds tokens and merges but
only a name for the rules that cut text into words first; wrong rules give wrong ids without an
error, so an unknown name is refused. Used by gguf_vocab.py.

Names and rules: llama.cpp, llama-vocab.cpp, llama_vocab::impl::load. Where it quotes the expression
of the original tokenizer.json beside its own adaptation, the original stands here. Compared with
the original files on varied text: llama-bpe and qwen2. NFC comes from qwen2's file and is taken to
hold for the names that share or extend its expression; tekken, gpt-4o and default were not
compared. Not covered: names that only architectures use which everbatch does not run.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split

from everbatch.base.errors import UnsupportedModel

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_GPT4O = (
    _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """Rules before byte-pair merging. splits: regular expressions, each applied to the pieces of
    the one before. ignore_merges: a word that is a token is taken whole. add_bos: the default where
    the file does not say. nfc: text is composed first."""

    splits: tuple[str, ...]
    single_digits: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> PreTokenizer:
        """Give the splitter of the tokenizers library; it ends by spelling bytes."""
        steps: list[PreTokenizer] = []
        if self.single_digits:
            steps.append(Digits(individual_digits=True))
        steps += [Split(Regex(split), "isolated", invert=False) for split in self.splits]
        steps.append(ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_PLAIN_LLAMA3 = PreTokenization((_LLAMA3,))
_WHOLE_WORD_LLAMA3 = PreTokenization((_LLAMA3,), ignore_merges=True, add_bos=True)
_SINGLE_DIGIT_GPT2 = PreTokenization((_GPT2,), single_digits=True)
_PLAIN_GPT2 = PreTokenization((_GPT2,))

_BY_NAME: dict[str, PreTokenization] = {
    "default": PreTokenization(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "trillion"), _PLAIN_GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _SINGLE_DIGIT_GPT2,
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _WHOLE_WORD_LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _PLAIN_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), PreTokenization((_QWEN2,), nfc=True)),
    "stablelm2": PreTokenization((_QWEN2,)),
    "qwen35": PreTokenization((_QWEN35,), nfc=True),
    "tekken": PreTokenization((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenization((_GPT4O,))),
}


def pre_tokenization(name: str) -> PreTokenization:
    """Look up the rules behind a `tokenizer.ggml.pre`; UnsupportedModel names an unknown one."""
    rules = _BY_NAME.get(name)
    if rules is None:
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} is not supported; supported: "
            f"{', '.join(sorted(_BY_NAME))}. Use the model's directory with tokenizer.json instead"
        )
    return rules
