"""Tokenizers out of a model's directory.

Belongs here: which files are read, and which of them wins. Not here: what the tokens mean
(spelling.py), GGUF (gguf_vocab.py). Used by tokenizer.py.

    tokenizer.json            vocabulary, merges, rules; required
    tokenizer_config.json     bos, eos, further added tokens, add_bos_token, chat template
    special_tokens_map.json   bos and eos where tokenizer_config.json has none
    chat_template.jinja, chat_template.json   the chat template, before tokenizer_config.json's
    generation_config.json    further tokens that end an answer
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.tokenizer.parts import TokenizerParts, surround

# The largest vocabularies have 33 MB. The other files are read by Python, which makes ten bytes of
# one; 6,000 added tokens are 1.1 MB.
MAX_FILE_BYTES = 128 * 2**20
MAX_CONFIG_BYTES = 8 * 2**20
MAX_ID_DIGITS = 10

_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_LISTED_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_SENTENCE_PIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def parts_from_directory(directory: Path) -> TokenizerParts:
    """Build a tokenizer from a model's directory.
    Raises ModelLoadError naming the file that is missing or broken."""
    backend = _read_backend(directory)
    config = _read_json(directory / "tokenizer_config.json")
    named = {**_read_json(directory / "special_tokens_map.json"), **_without_nulls(config)}
    added = _added_tokens_decoder(config)
    _add_tokens(backend, added)
    special = _mark_special(backend, added, named)
    bos, eos = _id_of(backend, named, "bos_token"), _id_of(backend, named, "eos_token")
    _apply_add_flags(backend, config, bos, eos)
    ends = [*([] if eos is None else [eos]), *_generation_ends(directory)]
    return TokenizerParts(
        backend=backend,
        special_ids=special,
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        chat_template=_read_template(directory, config),
    )


def _read_backend(directory: Path) -> Backend:
    path = directory / "tokenizer.json"
    if not path.is_file():
        _refuse_without_json(directory)
    text = _read_text(path, MAX_FILE_BYTES)
    try:
        backend = Backend.from_str(text)
    except Exception as error:
        # The library raises plain Exception, nothing narrower, for every broken file.
        raise ModelLoadError(f"{path} is not a tokenizer that can be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _refuse_without_json(directory: Path) -> None:
    for name in _SENTENCE_PIECE_FILES:
        if (directory / name).is_file():
            raise UnsupportedModel(
                f"{directory} has {name} but no tokenizer.json; convert it once with "
                "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
    raise ModelLoadError(f"{directory} has no tokenizer.json")


def _read_text(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelLoadError(f"{path} has {size:,} bytes, the limit is {max_bytes:,}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path} is not UTF-8: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        # ValueError: not JSON, or a number with thousands of digits.
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold an object, it holds a {type(value).__name__}")
    return value


def _without_nulls(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def _add_tokens(backend: Backend, added: list[tuple[int, AddedToken]]) -> None:
    """Add the tokens that only tokenizer_config.json knows; they must get the ids it gives."""
    for wanted_id, token in added:
        if backend.token_to_id(token.content) is None:
            # add_special_tokens marks a token as special, whatever its own flag says.
            add = backend.add_special_tokens if token.special else backend.add_tokens
            add([token])
        known = backend.token_to_id(token.content)
        if known != wanted_id:
            raise ModelLoadError(
                f"tokenizer_config.json gives {token.content!r} the id {wanted_id}, "
                f"tokenizer.json {known}"
            )


def _mark_special(
    backend: Backend, added: list[tuple[int, AddedToken]], named: dict[str, Any]
) -> frozenset[int]:
    """Mark the tokens that the configuration calls special; the ids of all special tokens.
    One that is not in the vocabulary is left alone: adding it would give it an id for which the
    model has no embedding."""
    contents = [token.content for _, token in added if token.special]
    contents += [text for name in _NAMED_TOKENS if (text := _content(named.get(name)))]
    for name in _LISTED_TOKENS:
        listed = named.get(name) or []
        items = listed.values() if isinstance(listed, dict) else listed
        if not isinstance(items, Iterable):
            raise ModelLoadError(f"tokenizer_config.json: {name} is {listed!r:.40}, not a list")
        contents += [text for item in items if (text := _content(item))]
    by_content = {text: backend.token_to_id(text) for text in contents}
    known = {text: index for text, index in by_content.items() if index is not None}
    matched = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [AddedToken(text, special=True) for text in known if text not in matched]
    )
    marked = [i for i, token in backend.get_added_tokens_decoder().items() if token.special]
    return frozenset([*marked, *known.values()])


def _added_tokens_decoder(config: dict[str, Any]) -> list[tuple[int, AddedToken]]:
    """Tokens of tokenizer_config.json by id, in order."""
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise ModelLoadError("tokenizer_config.json: added_tokens_decoder must be an object")
    tokens = []
    for key, entry in entries.items():
        content = _content(entry)
        if not content or not key.isdecimal() or len(key) > MAX_ID_DIGITS:
            raise ModelLoadError(
                f"tokenizer_config.json: added_tokens_decoder[{key!r:.40}] is broken"
            )
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: entry[name] is True for name in names if name in entry}
        tokens.append((int(key), AddedToken(content, **flags)))
    return sorted(tokens, key=lambda pair: pair[0])


def _content(token: object) -> str | None:
    """The written form of a token, given as a string or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str) or not token:
        return None
    try:
        token.encode()
    except UnicodeEncodeError:
        raise ModelLoadError(
            f"tokenizer_config.json: the token {token!r:.40} has half a character of UTF-16"
        ) from None
    return token


def _id_of(backend: Backend, named: dict[str, Any], name: str) -> int | None:
    content = _content(named.get(name))
    return None if content is None else backend.token_to_id(content)


def _apply_add_flags(
    backend: Backend, config: dict[str, Any], bos: int | None, eos: int | None
) -> None:
    """Let explicit add_bos_token and add_eos_token win over tokenizer.json's post-processor.
    Source: transformers 5, tokenization_utils_tokenizers.py, update_post_processor."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    first = bos if config.get("add_bos_token") is True else None
    last = eos if config.get("add_eos_token") is True else None
    backend.post_processor = surround(backend, first, last)


def _generation_ends(directory: Path) -> list[int]:
    path = directory / "generation_config.json"
    value = _read_json(path).get("eos_token_id")
    ends = value if isinstance(value, list) else [] if value is None else [value]
    for end in ends:
        if isinstance(end, bool) or not isinstance(end, int) or end < 0:
            raise ModelLoadError(f"{path}: eos_token_id holds {end!r}, expected token ids")
    return ends


def _read_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The chat template: its own file first, then tokenizer_config.json; of several named ones
    the one called "default"."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    path = directory / "chat_template.json"
    value = _read_json(path).get("chat_template", config.get("chat_template"))
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict)]
        value = {str(item.get("name")): item.get("template") for item in named}
    if isinstance(value, dict):
        value = value.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelLoadError(f"{directory}: chat_template must be a string, not {value!r:.80}")
    return value
