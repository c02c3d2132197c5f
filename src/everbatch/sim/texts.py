"""Gives every request of a scenario its token ids, as ranges: nothing is made token by token.

Equal text names are equal streams, so the first ids of a name are the same for every count. Private
tokens and outputs belong to one request. Written token ids are not negative; all others are, so the
two never meet.
"""

from collections.abc import Iterable

from everbatch.executors.simulated import Piece, SimulatedText
from everbatch.workload.requests import RequestSpec

LOWEST_ID = -(1 << 31)


class TextMaker:
    """Hands out ranges of ids. After 2**31 tokens private ids come again, one further on each time.

    So two texts of equal length still begin with different ids, and share no block.
    """

    def __init__(self, specs: Iterable[RequestSpec]) -> None:
        longest: dict[str, int] = {}
        for spec in specs:
            for segment in spec.prompt.segments:
                if segment.text is not None:
                    longest[segment.text] = max(segment.tokens, longest.get(segment.text, 0))
        self._next_id = self._first_private_id = LOWEST_ID
        self._num_rounds = 0
        self._streams = {name: self._take(count) for name, count in longest.items()}
        self._first_private_id = self._next_id

    def make(self, spec: RequestSpec) -> SimulatedText:
        """Make a request's text; call it once a request."""
        prompt = spec.prompt
        pieces: list[Piece] = [] if prompt.token_ids is None else [prompt.token_ids]
        for segment in prompt.segments:
            if segment.text is None:
                pieces.append(self._take(segment.tokens))
            else:
                pieces.append(self._streams[segment.text][: segment.tokens])
        num_outputs = min(spec.output_tokens, spec.max_tokens)
        outputs = [self._take(num_outputs) for _ in range(spec.num_samples)]
        return SimulatedText((*pieces, outputs[0]), spec.output_tokens, tuple(outputs[1:]))

    def _take(self, count: int) -> range:
        if self._next_id + count > 0:
            self._num_rounds += 1
            self._next_id = self._first_private_id + self._num_rounds
        start = self._next_id
        self._next_id = start + count
        return range(start, self._next_id)
