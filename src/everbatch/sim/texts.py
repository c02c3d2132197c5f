"""Makes requests for the engine, with their token ids as ranges: nothing is made token by token.

Equal text names are equal streams, so the first ids of a name are the same for every count. Private
tokens and outputs belong to one request. Written token ids are not negative; all others are, so the
two never meet.
"""

from functools import lru_cache

from everbatch.base.errors import ConfigError
from everbatch.engine.engine import EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.simulated import Piece, SimulatedText
from everbatch.workload.requests import RequestSpec

LOWEST_ID = -(1 << 31)
FIRST_PRIVATE_ID = -(3 << 29)
"""Named streams take the ids below, as many as were asked for so far."""


class TextMaker:
    """Hands out ranges of ids. After 3 · 2**29 private ones they come again, one further each time.

    So two texts of equal length still begin with different ids, and share no block.
    """

    def __init__(self) -> None:
        self._next_named_id = LOWEST_ID
        self._next_id = FIRST_PRIVATE_ID
        self._num_rounds = 0
        self._streams: dict[str, list[range]] = {}
        """Each as long as the longest piece of it so far, in as many ranges as it grew."""

    def make(self, spec: RequestSpec) -> SimulatedText:
        """Make a request's text; call it once a request."""
        prompt = spec.prompt
        pieces: list[Piece] = [] if prompt.token_ids is None else [prompt.token_ids]
        for text, num_tokens in prompt.segments:
            if text is None:
                pieces.append(self._take(num_tokens))
            else:
                pieces += self._named(text, num_tokens)
        num_outputs = min(spec.output_tokens, spec.max_tokens)
        outputs = [self._take(num_outputs) for _ in range(spec.num_samples)]
        return SimulatedText((*pieces, outputs[0]), spec.output_tokens, tuple(outputs[1:]))

    def _named(self, name: str, count: int) -> list[range]:
        """Give the first `count` ids of a stream."""
        stream = self._streams.get(name)
        if stream is None:
            self._streams[name] = stream = [self._new_named(count)]
            return stream
        if len(stream) == 1 and len(stream[0]) == count:
            # Most are asked for as a whole again.
            return stream
        pieces: list[range] = []
        for piece in stream:
            pieces.append(piece[:count])
            count -= len(pieces[-1])
        if count:
            stream.append(self._new_named(count))
            pieces.append(stream[-1])
        return pieces

    def _new_named(self, count: int) -> range:
        start = self._next_named_id
        self._next_named_id += count
        if self._next_named_id > FIRST_PRIVATE_ID:
            raise ConfigError(
                f"the named texts have more than {FIRST_PRIVATE_ID - LOWEST_ID:,} tokens in "
                "all: shorten them, or run fewer requests"
            )
        return range(start, self._next_named_id)

    def _take(self, count: int) -> range:
        if self._next_id + count > 0:
            self._num_rounds += 1
            self._next_id = FIRST_PRIVATE_ID + self._num_rounds
        start = self._next_id
        self._next_id = start + count
        return range(start, self._next_id)


@lru_cache(maxsize=4096)
def _limited(max_tokens: int) -> SamplingParams:
    """Give what a simulated request asks for, which nobody changes: made once a limit."""
    return SamplingParams(max_tokens=max_tokens)


def engine_request(spec: RequestSpec, texts: TextMaker) -> EngineRequest:
    """Give what the engine is handed for a request; call it once a request."""
    return EngineRequest(
        id=spec.id,
        prompt_token_ids=texts.make(spec),
        num_prompt_tokens=spec.prompt.num_tokens,
        sampling=_limited(spec.max_tokens),
        priority=spec.priority,
        tenant=spec.tenant,
        cache_salt=spec.cache_salt,
        n=spec.num_samples,
        deadline_ns=None if spec.deadline is None else spec.arrival + spec.deadline,
    )
