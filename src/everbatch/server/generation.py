"""One sample of a request: its tokens become text, its end becomes a finish_reason.

Belongs here: detokenizing, stop strings, counting. Not here: what the text looks like on the wire
(choices.py). Made by the routes, called by the bridge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from everbatch.engine.engine import TokenOutput
from everbatch.scheduler.admission import Rejection, RejectReason
from everbatch.scheduler.request import FinishReason
from everbatch.server.channel import Channel
from everbatch.server.errors import ApiError, bad_request, engine_failed, too_many, unavailable
from everbatch.server.live import Ending, Failed, Finished, Refused, TimedOut, Unserved
from everbatch.tokenizer.text_stream import TextStream

# OpenAI's code for a request that is too long; the other refusals have codes of their own.
TOO_LONG = "context_length_exceeded"
_TOO_LONG_REASONS = (RejectReason.CONTEXT_LIMIT, RejectReason.KV_POOL, RejectReason.TOKEN_BUDGET)
_BUSY_REASONS = (RejectReason.QUEUE_FULL, RejectReason.TENANT_RATE)
# What the client wrote that a refusal is about, where that is not the prompt.
_PARAMS = {RejectReason.MAX_TOKENS: "max_tokens", RejectReason.SEQUENCE_BUDGET: "n"}


class Choice(Protocol):
    """Where a generation's text goes: one choice of an answer, collected or streamed."""

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        """Note a token's log probabilities and the character at which it begins. Called before
        the text that it completes."""
        ...

    def text(self, text: str) -> None: ...

    def finish(self, finish_reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What errors quote of a request: how the client calls its prompt, and how long it may wait.
    no_output: only what is known of the prompt is asked for."""

    prompt_field: str
    max_wait_s: float | None
    no_output: bool = False


class Generation:
    """Receiver of one sample's tokens. `abort` is called when a stop string ends it early."""

    __slots__ = (
        "_abort",
        "_asked",
        "_channel",
        "_choice",
        "_is_open",
        "_text_stream",
        "finish_reason",
        "num_cached_tokens",
        "num_output_tokens",
    )

    def __init__(
        self,
        choice: Choice,
        text_stream: TextStream,
        channel: Channel,
        abort: Callable[[FinishReason], None],
        asked: Asked,
    ) -> None:
        self._choice = choice
        self._text_stream = text_stream
        self._channel = channel
        self._abort = abort
        self._asked = asked
        self._is_open = True
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.finish_reason: str | None = None
        """None until it has ended with text."""

    def admitted(self, num_cached_tokens: int) -> None:
        self.num_cached_tokens = num_cached_tokens

    def push(self, output: TokenOutput, *, is_stop_token: bool) -> None:
        if self._asked.no_output:
            return
        self.num_output_tokens += 1
        delta = self._text_stream.push(output.token_id, ends_request=is_stop_token)
        if output.logprobs is not None:
            self._choice.logprobs(output, delta.offset)
        if delta.text:
            self._choice.text(delta.text)
        if delta.stopped is not None:
            self._abort(FinishReason.STOP)
            self._finish_as(FinishReason.STOP)
            self._close(None)

    def end(self, ending: Ending) -> None:
        is_late = isinstance(ending, TimedOut) and self.num_output_tokens > 0
        error = None if is_late else _error_of(ending, self._asked)
        try:
            if is_late:
                self._finish(FinishReason.DEADLINE)
            elif isinstance(ending, Finished) and ending.reason in _FINISHED_WITH_TEXT:
                self._finish(ending.reason)
        except Exception:  # The request's border: the client is told, the bridge logs it.
            error = error or engine_failed("the end of the text could not be decoded")
            raise
        finally:
            self._close(error)

    def abort(self) -> bool:
        """End it with what text there is; gives whether it had not ended. Nothing comes after."""
        if not self._is_open:
            return False
        self._finish(FinishReason.ABORT)
        self._close(None)
        return True

    def _finish(self, reason: FinishReason) -> None:
        rest = self._text_stream.finish()
        if rest.text:
            self._choice.text(rest.text)
        met_stop = rest.stopped is not None and reason not in _CUT
        self._finish_as(FinishReason.STOP if met_stop else reason)

    def _finish_as(self, reason: FinishReason) -> None:
        if self._asked.no_output and reason is FinishReason.STOP:
            reason = FinishReason.LENGTH
        self.finish_reason = reason.value
        self._choice.finish(reason.value)

    def _close(self, error: ApiError | None) -> None:
        self._is_open = False
        if error is not None:
            self._channel.fail(error)
        self._channel.end_one()


_CUT = (FinishReason.ABORT, FinishReason.DEADLINE)
_FINISHED_WITH_TEXT = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)


def _error_of(ending: Ending, asked: Asked) -> ApiError | None:
    match ending:
        case Finished(FinishReason.STOP | FinishReason.LENGTH):
            return None
        case Finished(FinishReason.ABORT):
            return unavailable("the server is shutting down: the answer was cut", "shutting_down")
        case Finished(FinishReason.DEADLINE):
            return unavailable(
                f"the request waited longer than its max_wait_s, {asked.max_wait_s or 0:g}: come "
                "again later, or raise it",
                "deadline",
            )
        case Finished():
            return engine_failed("the engine failed on this request")
        case Refused(rejection, retry_after_s):
            return _refusal(rejection, retry_after_s, asked.prompt_field)
        case TimedOut(limit_s):
            return unavailable(
                f"the answer had not begun when its max_total_s, {limit_s:g}, was over: come again "
                "later, or raise it",
                "deadline",
            )
        case Unserved(message, code):
            return unavailable(message, code)
        case Failed(message):
            return engine_failed(message)


def _refusal(rejection: Rejection, retry_after_s: int | None, prompt_field: str) -> ApiError:
    if rejection.reason in _BUSY_REASONS:
        assert retry_after_s is not None
        return too_many(rejection.message, rejection.reason.value, retry_after_s)
    too_long = rejection.reason in _TOO_LONG_REASONS
    code = TOO_LONG if too_long else rejection.reason.value
    param = _PARAMS.get(rejection.reason, prompt_field)
    return bad_request(rejection.message, param, code)
