"""The text side of one request: tokens in, text out, until a stop string.

Belongs here: putting detokenizer and stop strings together by a request's SamplingParams. Used by
the server and the Python API, one `TextStream` a request.
"""

from dataclasses import dataclass

from everbatch.engine.sampling_params import SamplingParams
from everbatch.tokenizer.detokenizer import Detokenizer
from everbatch.tokenizer.stop import StopFinder
from everbatch.tokenizer.tokenizer import Tokenizer


@dataclass(slots=True)
class TextDelta:
    """What one token brought. text: characters to send now. stopped: the stop string that ends the
    request. offset: how many characters of the output lie before the token's own (`text_offset`
    in the logprobs of completions); characters that are held back count."""

    text: str
    stopped: str | None
    offset: int


class TextStream:
    """Turns the output tokens of one request into text.

    The tokens continue a prompt, so a SentencePiece vocabulary's leading space stays. Once a stop
    string was found nothing more comes out, whatever is pushed. Stop strings count from the token
    after `min_tokens` on, as in vLLM: one that is complete before is text.
    """

    __slots__ = (
        "_detokenizer",
        "_finder",
        "_include_stop",
        "_min_tokens",
        "_num_chars",
        "_num_tokens",
    )

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._include_stop = params.include_stop_str_in_output
        self._finder = (
            StopFinder(params.stop, include_stop=self._include_stop) if params.stop else None
        )
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._num_chars = 0

    def push(self, token_id: int, *, ends_request: bool = False) -> TextDelta:
        """Take the next output token. `ends_request`: it is eos or one of the stop_token_ids and
        ended the request; its text is left out unless include_stop_str_in_output is set."""
        offset = self._num_chars
        self._num_tokens += 1
        if ends_request and not self._include_stop:
            return TextDelta("", None, offset)
        text = self._detokenizer.push(token_id)
        self._num_chars += len(text)
        if self._finder is None:
            return TextDelta(text, None, offset)
        scan = self._finder.push(text, may_stop=self._num_tokens > self._min_tokens)
        return TextDelta(scan.text, scan.stop, offset)

    def finish(self) -> TextDelta:
        """Give what was held back. An unfinished character becomes U+FFFD, which may complete a
        stop string."""
        offset = self._num_chars
        text = self._detokenizer.finish()
        self._num_chars += len(text)
        if self._finder is None:
            return TextDelta(text, None, offset)
        scan = self._finder.push(text, may_stop=self._num_tokens > self._min_tokens)
        return TextDelta(scan.text + self._finder.finish(), scan.stop, offset)
