"""One line of JSON an event: the canonical text of the event log.

Belongs here: how a line reads. Not here: which lines a log has, and reading them (eventlog). Any
event can be dumped as JSON (`_any_line`); the kinds of which there are many have a text of their
own, which takes a sixth of the time. A name that is not plain ASCII goes the long way.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from json.encoder import encode_basestring as _quoted
from typing import Any

from everbatch.base.events import (
    EVENT_TYPES,
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    QuietSteps,
    StepRan,
    StepsRan,
)

# Made once: json.dumps makes an encoder a call whenever it is told separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ESCAPING_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
_NAMES = {kind: tuple(item.name for item in fields(kind)) for kind in EVENT_TYPES.values()}


def event_line(event: Event) -> str:
    """Give an event's line, with its newline."""
    line = _LINES.get(type(event), _any_line)(event)
    return line if line.isascii() else _any_line(event)


def lines_between(steps: StepsRan) -> str | None:
    """Give the lines from the first change to the last, in a quarter of the time of its parts'.

    None where there are no changes, and where a name is not plain.
    """
    if not steps.changes:
        return None
    ends, first_step, num_decodes = steps.ends, steps.step, steps.decodes
    counts = f'"tokens":{num_decodes},"emitted":{num_decodes},"decodes":{num_decodes}'
    joined = ",".join(map(_quoted, steps.joined))
    lines: list[str] = []
    at = steps.changes[0].step - first_step
    for step, blocks, free_blocks, cached_blocks in steps.changes:
        place = step - first_step
        if at < place:
            start = first_step + at
            lines.append(quiet_line(start, ends[at], ends[place], place - at, num_decodes))
        at = place + 1
        if len(blocks) == 1:
            # Four times of five; joining one text takes as long as making it.
            [(name, block)] = blocks
            taken = f"[{_quoted(name)},[{block}]]"
        else:
            taken = ",".join([f"[{_quoted(name)},[{block}]]" for name, block in blocks])
        lines.append(
            f'{{"event":"step","t":{ends[at]},"step":{step},"start":{ends[place]},{counts},'
            f'"chunks":[],"blocks":[{taken}],"joined":[{"" if place else joined}],"left":[],'
            f'"free_blocks":{free_blocks},"cached_blocks":{cached_blocks}}}\n'
        )
    text = "".join(lines)
    return text if text.isascii() else None


def quiet_line(step: int, start: int, t: int, count: int, decodes: int) -> str:
    """Give the line of quiet steps."""
    return (
        f'{{"event":"steps","t":{t},"step":{step},"start":{start},"count":{count},'
        f'"decodes":{decodes}}}\n'
    )


def dump(facts: dict[str, object]) -> str:
    """Give any facts as a line that UTF-8 has a place for."""
    line = _ENCODER.encode(facts)
    try:
        # As good as free where the text is ASCII.
        line.encode()
    except UnicodeEncodeError:
        # An id or a tenant holds half a character, as JSON can: UTF-8 has no place for it.
        line = _ESCAPING_ENCODER.encode(facts)
    return line + "\n"


def _any_line(event: Event) -> str:
    facts: dict[str, object] = {"event": event.kind}
    for name in _NAMES[type(event)]:
        facts[name] = getattr(event, name)
    return dump(facts)


def _arrived_line(event: Arrived) -> str:
    return (
        f'{{"event":"arrived","t":{event.t},"id":{_quoted(event.id)},'
        f'"prompt_tokens":{event.prompt_tokens},"max_tokens":{event.max_tokens},'
        f'"priority":{event.priority},"tenant":{_quoted(event.tenant)},'
        f'"samples":{event.samples}}}\n'
    )


def _admitted_line(event: Admitted) -> str:
    return (
        f'{{"event":"admitted","t":{event.t},"step":{event.step},"id":{_quoted(event.id)},'
        f'"slot":{event.slot},"prompt_tokens":{event.prompt_tokens},'
        f'"cached_tokens":{event.cached_tokens},"computed_tokens":{event.computed_tokens},'
        f'"resumed":{_truth(event.resumed)}}}\n'
    )


def _decoding_line(event: Decoding) -> str:
    return (
        f'{{"event":"decoding","t":{event.t},"step":{event.step},"id":{_quoted(event.id)},'
        f'"emitted":{_truth(event.emitted)}}}\n'
    )


def _deferred_line(event: Deferred) -> str:
    return (
        f'{{"event":"deferred","t":{event.t},"step":{event.step},"id":{_quoted(event.id)},'
        f'"reason":{_quoted(event.reason)},"needed":{event.needed},"available":{event.available},'
        f'"behind":{_text_or_null(event.behind)},"lacking_slots":{event.lacking_slots},'
        f'"lacking_tokens":{event.lacking_tokens},"lacking_blocks":{event.lacking_blocks}}}\n'
    )


def _preempted_line(event: Preempted) -> str:
    return (
        f'{{"event":"preempted","t":{event.t},"step":{event.step},"id":{_quoted(event.id)},'
        f'"slot":{_number_or_null(event.slot)},"computed_tokens":{event.computed_tokens},'
        f'"blocks":{event.blocks},"way":{_quoted(event.way)},'
        f'"swap_ns":{_number_or_null(event.swap_ns)},'
        f'"recompute_ns":{_number_or_null(event.recompute_ns)},'
        f'"requester":{_text_or_null(event.requester)},"needed":{event.needed}}}\n'
    )


def _finished_line(event: Finished) -> str:
    return (
        f'{{"event":"finished","t":{event.t},"step":{event.step},"id":{_quoted(event.id)},'
        f'"reason":{_quoted(event.reason)},"output_tokens":{event.output_tokens},'
        f'"cached_tokens":{event.cached_tokens},"recomputed_tokens":{event.recomputed_tokens},'
        f'"preemptions":{event.preemptions},"message":{_text_or_null(event.message)}}}\n'
    )


def _quiet_steps_line(event: QuietSteps) -> str:
    return quiet_line(event.step, event.start, event.t, event.count, event.decodes)


def _step_line(event: StepRan) -> str:
    # Few steps have any but blocks: joining nothing takes as long as the rest of the line.
    blocks = [
        f"[{_quoted(name)},[{taken[0] if len(taken) == 1 else _numbers(taken)}]]"
        for name, taken in event.blocks
    ]
    chunks = joined = left = ""
    if event.chunks:
        chunks = ",".join([f"[{_quoted(name)},{start},{n}]" for name, start, n in event.chunks])
    if event.joined:
        joined = ",".join(map(_quoted, event.joined))
    if event.left:
        left = ",".join(map(_quoted, event.left))
    return (
        f'{{"event":"step","t":{event.t},"step":{event.step},"start":{event.start},'
        f'"tokens":{event.tokens},"emitted":{event.emitted},"decodes":{event.decodes},'
        f'"chunks":[{chunks}],"blocks":[{",".join(blocks)}],"joined":[{joined}],"left":[{left}],'
        f'"free_blocks":{event.free_blocks},"cached_blocks":{event.cached_blocks}}}\n'
    )


def _numbers(numbers: tuple[int, ...]) -> str:
    """Give numbers with commas between, in two fifths of the time that joining them takes."""
    return ("%s," * len(numbers) % numbers)[:-1]


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _text_or_null(text: str | None) -> str:
    return "null" if text is None else _quoted(text)


def _number_or_null(number: int | None) -> str:
    return "null" if number is None else str(number)


_LINES: dict[type[Event], Callable[[Any], str]] = {
    Arrived: _arrived_line,
    Admitted: _admitted_line,
    Decoding: _decoding_line,
    Deferred: _deferred_line,
    Preempted: _preempted_line,
    Finished: _finished_line,
    StepRan: _step_line,
    QuietSteps: _quiet_steps_line,
}
"""The kinds of which there are many; the others are dumped."""
