"""The fields that ask for a form: OpenAI's response_format, vLLM's structured_outputs and guided_*.

Belongs here: reading them into one wish. Not here: what a form may be (engine.structured_outputs),
whether it can be (tokenizer.grammars).
"""

from everbatch.server.fields import Fields, IsNeutral, Json, nothing

MAX_SCHEMA_NAME_LENGTH = 64
MAX_DESCRIPTION_LENGTH = 4_096
FORMATS = ("text", "json_object", "json_schema")
# vLLM's older names for one field each of structured_outputs.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


NOT_SUPPORTED: dict[str, IsNeutral] = {
    "structural_tag": nothing,
    "whitespace_pattern": nothing,
    "disable_any_whitespace": nothing,
    "disable_additional_properties": nothing,
    "disable_fallback": nothing,
}


def take_form(fields: Fields, own: Json = None) -> Json:
    """Take the form that is asked for, as SamplingParams takes it; None: any text. `own`: what was
    taken from a field of the API's own."""
    wishes = {
        "text.format": own,
        "response_format": _response_format(fields),
        "structured_outputs": _structured_outputs(fields),
    }
    for name, kind in GUIDED.items():
        value = fields.take(name)
        wishes[name] = None if value is None else {kind: value}
    given = [name for name, wish in wishes.items() if wish is not None]
    if len(given) > 1:
        raise fields.bad(given[1], f"and {given[0]} both ask for a form: give one of them")
    return wishes[given[0]] if given else None


def take_format(fields: Fields, name: str, *, is_flat: bool) -> Json:
    """Take an object with a `type` among FORMATS. A schema is in `json_schema`, or (`is_flat`)
    beside the type."""
    wanted = fields.object(name)
    if wanted is None:
        return None
    kind = wanted.text("type", MAX_SCHEMA_NAME_LENGTH)
    if kind not in FORMATS:
        raise wanted.bad("type", f"must be one of {', '.join(FORMATS)}, got {kind!r}")
    form: Json = {"json_object": True} if kind == "json_object" else None
    if kind == "json_schema":
        described = wanted if is_flat else wanted.object("json_schema")
        if described is None:
            raise wanted.bad("json_schema", "is missing: give its name and its schema")
        form = {"json": _schema(described)}
        if described is not wanted:
            described.end()
    wanted.end()
    return form


def _response_format(fields: Fields) -> Json:
    return take_format(fields, "response_format", is_flat=False)


def _schema(described: Fields) -> Json:
    described.text("name", MAX_SCHEMA_NAME_LENGTH)
    described.text("description", MAX_DESCRIPTION_LENGTH)
    # Always strict: what is asked for is what comes.
    described.boolean("strict")
    schema = described.take("schema")
    if schema is None:
        return {}
    if not isinstance(schema, dict):
        raise described.wrong_type("schema", "a JSON schema", schema)
    return schema


def _structured_outputs(fields: Fields) -> Json:
    value = fields.take("structured_outputs")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise fields.wrong_type("structured_outputs", "an object", value)
    Fields(value, "structured_outputs").refuse(NOT_SUPPORTED)
    return {name: one for name, one in value.items() if name not in NOT_SUPPORTED}
