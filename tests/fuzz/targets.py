"""All fuzz targets by name."""

from fuzz import (
    chat_templates,
    event_logs,
    gguf_files,
    request_bodies,
    safetensors_files,
    scenario_files,
    tokenizer_files,
    tool_calls,
    trace_files,
)
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        chat_templates,
        event_logs,
        gguf_files,
        request_bodies,
        safetensors_files,
        scenario_files,
        tokenizer_files,
        tool_calls,
        trace_files,
    )
}
