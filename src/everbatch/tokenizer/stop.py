"""Stop strings in text that arrives in pieces.

Belongs here: finding them, and holding back what may still become one. Not here: stop token ids
and eos, which the executor compares. Used by text_stream.py.

    text so far:  [0, sent) given out | [sent, end) held: the longest suffix that begins a stop

The stop that counts is the one that is complete first; of several complete at the same character,
the longest. So the outcome depends on the text alone and not on how it was cut into tokens, and no
token is generated to see whether a longer stop would follow. (vLLM takes the first of the list that
occurs in the text of the newest tokens, which changes with the cut.)
"""

import re
from dataclasses import dataclass


@dataclass(slots=True)
class StopScan:
    """What one piece brought. text: to give out now. stop: the stop string that ended the text."""

    text: str
    stop: str | None = None


class StopFinder:
    """Watches one request's text for its stop strings.

    Knuth, Morris and Pratt's automaton for each string: O(1) a character and string, amortised;
    text in which no stop string begins is skipped.
    """

    __slots__ = ("_automata", "_first", "_held", "_include_stop", "_stopped")

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops)]
        firsts = "".join(dict.fromkeys(re.escape(stop[0]) for stop in stops))
        self._first = re.compile(f"[{firsts}]") if stops else None
        self._include_stop = include_stop
        self._held = ""
        self._stopped = False

    def push(self, text: str, *, may_stop: bool = True) -> StopScan:
        """Take the next piece. With `may_stop` false a stop that is complete within it is text
        like any other; one that begins in it may still end later. After a stop nothing more
        comes out."""
        if self._stopped:
            return StopScan("")
        if self._first is None or not (self._held or self._first.search(text)):
            return StopScan(text)
        position = len(self._held)
        text = self._held + text
        while position < len(text):
            found = self._step(text[position])
            position += 1
            if found and may_stop:
                return self._stop(text, position, found)
            if not any(automaton.matched for automaton in self._automata):
                # Nothing has begun, so go on where a stop string could begin next.
                begin = self._first.search(text, position)
                position = begin.start() if begin else len(text)
        longest = max(automaton.matched for automaton in self._automata)
        cut = len(text) - longest
        self._held = text[cut:]
        return StopScan(text[:cut])

    def finish(self) -> str:
        """Give what is held back: no stop can come of it any more."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        """Advance every automaton; the longest stop string that `char` completes."""
        found: str | None = None
        for automaton in self._automata:
            if automaton.step(char) and (found is None or len(automaton.stop) > len(found)):
                found = automaton.stop
        return found

    def _stop(self, text: str, end: int, stop: str) -> StopScan:
        self._stopped = True
        self._held = ""
        return StopScan(text[: end if self._include_stop else end - len(stop)], stop)


class _Automaton:
    """How much of `stop` the text ends with. A complete match counts as `matched` only until the
    next character, and not in what is held: it was judged when it was complete."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = _fallbacks(stop)

    def step(self, char: str) -> bool:
        """Take one character; whether `stop` is complete with it."""
        stop, fallback, matched = self.stop, self._fallback, self.matched
        while matched and stop[matched] != char:
            matched = fallback[matched - 1]
        if stop[matched] == char:
            matched += 1
        complete = matched == len(stop)
        self.matched = fallback[-1] if complete else matched
        return complete


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper suffix that begins `stop`.
    Source: Knuth, Morris, Pratt 1977, section 2."""
    lengths = [0] * len(stop)
    matched = 0
    for position in range(1, len(stop)):
        while matched and stop[position] != stop[matched]:
            matched = lengths[matched - 1]
        if stop[position] == stop[matched]:
            matched += 1
        lengths[position] = matched
    return lengths
