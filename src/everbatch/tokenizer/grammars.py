"""Forms of answers, token by token: which tokens may come next.

Belongs here: compiling what SamplingParams ask for over one vocabulary, by llguidance, and
following an answer through it. Not here: the wish (engine.structured_outputs), choosing among the
tokens that are left (kernels). Used by the server and the Python API, which check, and by the model
executor, which follows. llguidance is imported when it is first needed, which takes 60 ms.

A `Constraint` is a function of the outputs so far and keeps no other state, so a request that lost
its slot starts a new one and goes on as if nothing had happened.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CACHED = 64
"""Compiled forms that are kept: clients ask for the same ones again, and samples share them."""

MAX_STEP_ITEMS = 5_000
"""States of the parser for one token. All rows of a step wait for a mask: one of an ambiguous
grammar takes a tenth of a second with so many, and a second with llguidance's own 50,000."""

# Between two parts of a JSON text. A model that is not sure writes spaces for ever, so there is an
# end to them; a nested, indented text fits.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,24}"
_ANY_OBJECT = '{"type": "object"}'


class Grammars:
    """Compiles forms over one model's vocabulary. Safe to use from several threads.

    vocab_size: logits of the network, at least the ids of the tokenizer that it knows.
    eos_token_ids: the ids that end an answer; any of them may come where the form may end.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()

    def check(self, wanted: StructuredOutputsParams) -> None:
        """Raise InvalidRequest for a form that cannot be. The first call takes up to a second,
        others what the form takes to compile, and nothing the second time."""
        self._matcher(wanted)

    def start(self, wanted: StructuredOutputsParams) -> "Constraint":
        """Give a new follower; raises InvalidRequest as `check` does."""
        return Constraint(self._matcher(wanted).deep_copy(), self._eos_token_ids)

    def _matcher(self, wanted: StructuredOutputsParams) -> "LLMatcher":
        """Give the compiled form in its first state, which nobody may change."""
        key = wanted.kind_and_text
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        # Outside of the lock: whoever starts another form meanwhile does not wait for this one.
        made = _compiled(*key, self._built_vocabulary())
        with self._lock:
            self._compiled[key] = made
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return made

    def _built_vocabulary(self) -> "LLTokenizer":
        if not self._eos_token_ids:
            raise InvalidRequest(
                "the model has no token that ends an answer, so none can have a form: leave "
                "structured_outputs and response_format out",
                "structured_outputs",
            )
        with self._vocabulary_lock:
            if self._vocabulary is None:
                from llguidance import LLTokenizer, TokenizerWrapper

                words = _Words(self._tokenizer, self._vocab_size, self._eos_token_ids)
                self._vocabulary = LLTokenizer(TokenizerWrapper(words), n_vocab=self._vocab_size)
            return self._vocabulary


class Constraint:
    """Follows one answer. One thread at a time."""

    def __init__(self, matcher: "LLMatcher", eos_token_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._num_followed = 0

    @property
    def error(self) -> str | None:
        """Why it allows nothing any more, if so: the form was too large to follow."""
        return _short(self._matcher.get_error()) if self._matcher.is_error() else None

    def allowed(self, outputs: Sequence[int]) -> bytes:
        """Give which tokens may follow `outputs`, which only grow from call to call: a bit for each
        id, the lowest bit of a byte first. No bits: none may, see `error`."""
        new = outputs[self._num_followed :]
        self._num_followed = len(outputs)
        if not self._matcher.consume_tokens(list(new)):
            return b""
        mask = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            return b""
        # The form knows one end of text, models may have several.
        first, *others = self._eos_token_ids
        if mask[first >> 3] >> (first & 7) & 1:
            for other in others:
                mask[other >> 3] |= 1 << (other & 7)
        return bytes(mask)


class _Words:
    """A vocabulary as llguidance wants it."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        special = tokenizer.special_ids | set(eos_token_ids)
        self.special_token_ids = sorted(one for one in special if one < vocab_size)

    def __call__(self, text: bytes) -> list[int]:
        """Give the tokens of a text that goes on after another: no space is put before it."""
        written = text.decode()
        token_ids = self._tokenizer.encode(written, add_special_tokens=False)
        if self._bytes_of(token_ids) == text:
            return token_ids
        # SentencePiece puts a space first: let it stand before a character that joins nothing.
        token_ids = self._tokenizer.encode(f"\x02{written}", add_special_tokens=False)
        while token_ids and self._bytes_of(token_ids) != text:
            del token_ids[0]
        return token_ids

    def _bytes_of(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, token_ids))


def _compiled(kind: str, text: str, vocabulary: "LLTokenizer") -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits

    try:
        matcher = LLMatcher(
            vocabulary,
            _grammar(kind, text),
            log_level=0,
            limits=LLParserLimits(verbose_errors=False, step_max_items=MAX_STEP_ITEMS),
        )
    except ValueError as error:
        raise _cannot_be(kind, str(error)) from None
    if matcher.is_error():
        raise _cannot_be(kind, matcher.get_error())
    # Lexers are built with the first mask, which may take seconds, and kept for all copies. Here
    # nobody but this form's request waits for them.
    probe = matcher.deep_copy()
    mask = probe.compute_bitmask()
    if probe.is_error():
        raise _cannot_be(kind, probe.get_error())
    if not any(mask):
        raise _cannot_be(kind, "no text is of this form")
    return matcher


def _grammar(kind: str, text: str) -> str:
    from llguidance import LLMatcher, grammar_from

    match kind:
        case "json" | "json_object":
            schema = text if kind == "json" else _ANY_OBJECT
            return LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_pattern": _WHITESPACE}
            )
        case "regex":
            return grammar_from("regex", text)
        case "choice":
            return grammar_from("choice", text)
        case _:
            return grammar_from("grammar", text)


def _cannot_be(kind: str, why: str) -> InvalidRequest:
    names = {"json": "the JSON schema", "regex": "the regular expression", "choice": "the choices"}
    name = names.get(kind, "the grammar")
    return InvalidRequest(f"{name} cannot be followed: {_short(why)}", "structured_outputs")


def _short(message: str) -> str:
    """Give a message in one line."""
    return " ".join(message.split()) or "it is too complex"
