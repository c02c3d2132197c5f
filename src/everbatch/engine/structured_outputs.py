"""What form an answer must have: vLLM's names.

Belongs here: the wish and its limits. Not here: what it means token by token (tokenizer.grammars).
Part of SamplingParams.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from everbatch.base.errors import InvalidRequest

MAX_GRAMMAR_CHARACTERS = 262_144
MAX_CHOICES_OF_TEXT = 1_024
_NAME = "structured_outputs"


@dataclass(slots=True)
class StructuredOutputsParams:
    """One form, given in one of five ways; raises InvalidRequest for none, two, or a wrong type.

    json: a JSON schema, as a mapping or as text; json_object: any JSON object; regex: all of the
    answer matches it; choice: the answer is one of these; grammar: a context-free grammar.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        if self.json_object is False:
            self.json_object = None
        given = [item.name for item in fields(self) if getattr(self, item.name) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                f"{_NAME} must have exactly one of json, regex, choice, grammar and json_object, "
                f"not {' and '.join(given) or 'none of them'}",
                _NAME,
            )
        self._check_type(given[0])
        _, text = self.kind_and_text
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"{_NAME}.{given[0]} has {len(text):,} characters, at most "
                f"{MAX_GRAMMAR_CHARACTERS:,} go",
                _NAME,
            )

    @property
    def kind_and_text(self) -> tuple[str, str]:
        """Give which form it is, and all that tells it: equal texts mean equal forms."""
        if self.json is not None:
            return "json", self.json if isinstance(self.json, str) else schema_text(self.json)
        if self.choice is not None:
            return "choice", json.dumps(list(self.choice))
        if self.regex is not None:
            return "regex", self.regex
        if self.grammar is not None:
            return "grammar", self.grammar
        return "json_object", ""

    def _check_type(self, name: str) -> None:
        value = getattr(self, name)
        match name:
            case "json":
                is_right, wanted = isinstance(value, str | Mapping), "a JSON schema"
            case "choice":
                is_right, wanted = _are_choices(value), f"1 to {MAX_CHOICES_OF_TEXT:,} texts"
            case "json_object":
                is_right, wanted = value is True, "true or false"
            case _:
                is_right, wanted = _is_text(value), "a text that is not empty"
        if not is_right:
            raise InvalidRequest(f"{_NAME}.{name} must be {wanted}", _NAME)


def schema_text(schema: Mapping[str, object]) -> str:
    """Write a JSON schema; raises InvalidRequest where it cannot be written."""
    try:
        return json.dumps(schema)
    except RecursionError:
        raise InvalidRequest("the JSON schema is nested too deeply: flatten it", _NAME) from None


def structured_outputs_of(given: object) -> StructuredOutputsParams | None:
    """Take what a client gave: nothing, the parameters, or a mapping of their names."""
    if given is None or isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{_NAME} must be an object, not {type(given).__name__}", _NAME)
    known = [item.name for item in fields(StructuredOutputsParams)]
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise InvalidRequest(
            f"{_NAME} has the unknown field {unknown[0][:80]!r}: there are {', '.join(known)}",
            _NAME,
        )
    return StructuredOutputsParams(**given)


def _are_choices(value: object) -> bool:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CHOICES_OF_TEXT:
        return False
    return all(isinstance(one, str) and one for one in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
