"""`LLM.generate` for scripts: prompts in, texts out, with vLLM's names.

Belongs here: the offline face. Not here: serving (server), putting an engine together (assemble).

    from everbatch import LLM, SamplingParams
    llm = LLM()
    [answer] = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    print(answer.outputs[0].text)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from everbatch.assemble.interrupts import interrupts_between_steps
from everbatch.assemble.options import EngineOptions
from everbatch.assemble.real import Progress, RealEngine, build_engine
from everbatch.base.errors import ConfigError, InvalidRequest
from everbatch.engine.engine import EngineRequest, StepResult, TokenOutput
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.engine.token_checks import check_min_tokens, check_sampling_ids, check_token_ids
from everbatch.scheduler.request import FinishReason
from everbatch.tokenizer.text_stream import TextStream
from everbatch.tokenizer.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, object]
"""Text, token ids, or vLLM's {"prompt": text} and {"prompt_token_ids": ids}."""

Message: TypeAlias = Mapping[str, object]
"""One turn of a conversation: {"role": …, "content": …}."""

OnFinished = Callable[[int, "RequestOutput"], None]
"""Hears of each answer as it ends, with the position of its prompt."""

MAX_QUEUED = 4_096
"""Requests handed to the engine ahead of time; the rest follows when there is room."""


@dataclass(slots=True)
class Logprob:
    """Of one token in one place: log probability, rank (1: the likeliest), and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    finish_reason: "stop", "length" or "error", and `error` then says why. stop_reason: the stop
    string or stop token id that ended it, if one did. logprobs: if asked for, by token id, for
    each token of the answer: the token itself first, then the likeliest.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what came of it. `prompt` is None if token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False


@dataclass(slots=True)
class _Wanted:
    """A prompt that can run."""

    text: str | None
    token_ids: list[int]
    params: SamplingParams


@dataclass(slots=True)
class _Running:
    """A request under way."""

    index: int
    output: RequestOutput
    params: SamplingParams
    stream: TextStream


class LLM:
    """A model in this process. Options are those of EngineOptions, by name."""

    def __init__(
        self, model: str | None = None, *, progress: Progress | None = None, **options: Any
    ) -> None:
        known = [item.name for item in fields(EngineOptions)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ConfigError(
                f"LLM knows no option {', '.join(unknown)}; it knows {', '.join(known)}"
            )
        if options.get("event_log") is not None:
            options["event_log"] = Path(options["event_log"])
        name = None if model is None else str(model)
        self._real = build_engine(EngineOptions(model=name, **options), progress)
        self._ids = count()

    @property
    def real(self) -> RealEngine:
        """The engine and all that goes with it."""
        return self._real

    def get_tokenizer(self) -> Tokenizer:
        return self._real.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, in their order; one SamplingParams for all, or one each.

        Raises InvalidRequest, before anything runs, if one of them can never run. Ctrl-C takes
        effect between two steps: the engine can be used again.
        """
        listed = _listed(prompts)
        params = _paired(sampling_params, len(listed))
        wanted = [
            self._wanted(prompt, of_prompt, index if len(listed) > 1 else None)
            for index, (prompt, of_prompt) in enumerate(zip(listed, params, strict=True))
        ]
        return self._run(wanted, on_finished or _ignore)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        several = _is_list(messages) and messages and _is_list(messages[0])
        conversations = messages if several else [messages]
        prompts = [self.encode_chat(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, on_finished=on_finished)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Give the token ids of a conversation, ready for the model's turn."""
        if not _is_list(messages) or not messages:
            raise InvalidRequest(
                'messages must be a list of at least one {"role": …, "content": …}', "messages"
            )
        text = self._real.tokenizer.chat_template.render(messages, now=datetime.now())
        return self._real.tokenizer.encode(text, add_special_tokens=False)

    def check(self, prompt: Prompt, sampling_params: SamplingParams) -> list[int]:
        """Give the token ids of a prompt; raises InvalidRequest if it can never run."""
        return self._wanted(prompt, sampling_params, None).token_ids

    def close(self) -> None:
        """Write what is left of the event log."""
        self._real.close()

    def _wanted(self, prompt: Prompt, params: SamplingParams, index: int | None) -> _Wanted:
        """Check a prompt; `index` is told in the error, where there are several."""
        try:
            text, token_ids = self._encode(prompt)
            # Checked again, and nobody's to change from here on.
            snapshot = replace(params)
            self._check(token_ids, snapshot)
        except InvalidRequest as error:
            if index is None:
                raise
            raise InvalidRequest(f"prompts[{index}]: {error}", error.param) from error
        return _Wanted(text, token_ids, snapshot)

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Give the text, if it came as text, and the token ids."""
        if isinstance(prompt, Mapping):
            given = dict(prompt)
            text, token_ids = given.pop("prompt", None), given.pop("prompt_token_ids", None)
            if given or (text is None) == (token_ids is None):
                raise InvalidRequest(
                    'a prompt given as a dict has either "prompt" or "prompt_token_ids", not '
                    f"{', '.join(map(repr, prompt)) or 'nothing'}",
                    "prompts",
                )
            if text is not None and not isinstance(text, str):
                raise InvalidRequest(f'"prompt" must be text, not {type(text).__name__}', "prompts")
            return (None, _token_ids(token_ids)) if text is None else self._encode(text)
        if isinstance(prompt, str):
            return prompt, self._real.tokenizer.encode(prompt)
        return None, _token_ids(prompt)

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        engine, vocab_size = self._real.engine, self._real.vocab_size
        check_token_ids(token_ids, vocab_size)
        check_sampling_ids(params, vocab_size)
        check_min_tokens(params, engine.max_output_tokens(len(token_ids)))
        rejection = engine.refusal(len(token_ids), params.max_tokens)
        if rejection is not None:
            raise InvalidRequest(rejection.message, "prompts")

    def _run(self, wanted: list[_Wanted], on_finished: OnFinished) -> list[RequestOutput]:
        engine = self._real.engine
        results: list[RequestOutput] = []
        running: dict[str, _Running] = {}
        pending = iter(wanted)
        is_between_steps = True
        try:
            with interrupts_between_steps() as check_interrupt:
                self._fill(pending, running, results)
                while running:
                    check_interrupt()
                    is_between_steps = False
                    result = engine.step()
                    is_between_steps = True
                    self._take(result, running, on_finished)
                    self._fill(pending, running, results)
        finally:
            # After an interrupt, or an error above, nothing of this call may go on running.
            for request_id in running:
                engine.abort(request_id)
            # Aborts, those of stop strings too, are told at a boundary.
            if is_between_steps and engine.has_work:
                engine.step()
        return results

    def _fill(
        self,
        pending: Iterator[_Wanted],
        running: dict[str, _Running],
        results: list[RequestOutput],
    ) -> None:
        while len(running) < MAX_QUEUED:
            wanted = next(pending, None)
            if wanted is None:
                return
            request_id = f"offline-{next(self._ids)}"
            output = RequestOutput(request_id, wanted.text, wanted.token_ids, [CompletionOutput(0)])
            ids = np.asarray(wanted.token_ids, np.int32)
            rejection = self._real.engine.add(
                EngineRequest(request_id, ids, len(ids), wanted.params)
            )
            assert rejection is None, "the limits were checked before"
            stream = TextStream(self._real.tokenizer, wanted.params)
            running[request_id] = _Running(len(results), output, wanted.params, stream)
            results.append(output)

    def _take(
        self, result: StepResult, running: dict[str, _Running], on_finished: OnFinished
    ) -> None:
        ended = dict(result.finished)
        for token in result.outputs:
            request = running.get(token.request_id)
            if request is None:
                continue
            is_stop = ended.get(token.request_id) is FinishReason.STOP
            if self._push(request, token, is_stop_token=is_stop):
                self._real.engine.abort(token.request_id, FinishReason.STOP)
                ended[token.request_id] = FinishReason.STOP
        for request_id, reason in ended.items():
            request = running.pop(request_id, None)
            if request is not None:
                _finish(request, reason, result.error)
                on_finished(request.index, request.output)

    def _push(self, request: _Running, token: TokenOutput, *, is_stop_token: bool) -> bool:
        """Add a token; gives whether a stop string was found."""
        completion = request.output.outputs[0]
        completion.token_ids.append(token.token_id)
        if token.logprobs is not None:
            self._add_logprobs(completion, token.token_id, token.logprobs)
        delta = request.stream.push(token.token_id, ends_request=is_stop_token)
        completion.text += delta.text
        if delta.stopped is not None:
            completion.stop_reason = delta.stopped
        elif is_stop_token and token.token_id in request.params.stop_token_ids:
            completion.stop_reason = token.token_id
        return delta.stopped is not None

    def _add_logprobs(
        self, completion: CompletionOutput, token_id: int, of_token: TokenLogprobs
    ) -> None:
        decode = self._real.tokenizer.decode
        texts = {
            one: decode([one], skip_special_tokens=False, at_start=False)
            for one in (token_id, *(top_id for top_id, _ in of_token.top))
        }
        told = {token_id: Logprob(of_token.logprob, of_token.rank, texts[token_id])}
        for rank, (top_id, logprob) in enumerate(of_token.top, 1):
            told.setdefault(top_id, Logprob(logprob, rank, texts[top_id]))
        if completion.logprobs is None:
            completion.logprobs = []
        completion.logprobs.append(told)
        completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + of_token.logprob


def _finish(request: _Running, reason: FinishReason, error: str | None) -> None:
    completion = request.output.outputs[0]
    rest = request.stream.finish()
    completion.text += rest.text
    if rest.stopped is not None and reason is not FinishReason.ERROR:
        completion.stop_reason = rest.stopped
        reason = FinishReason.STOP
    completion.finish_reason = reason.value
    if reason is FinishReason.ERROR:
        completion.error = error or "the model gave no finite numbers for this request"
    request.output.finished = True


def _listed(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Tell one prompt from a list of prompts."""
    if isinstance(prompts, bytes | bytearray):
        raise InvalidRequest("prompts must be text or token ids, not bytes", "prompts")
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidRequest(
            f"prompts must be a prompt or a list of prompts, not {type(prompts).__name__}",
            "prompts",
        )
    listed = list(prompts)
    if listed and isinstance(listed[0], int | np.integer):
        return [listed]  # type: ignore[list-item]
    return listed  # type: ignore[return-value]


def _paired(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if isinstance(sampling_params, SamplingParams) or sampling_params is None:
        return [sampling_params or SamplingParams()] * num_prompts
    params = list(sampling_params)
    if len(params) != num_prompts:
        raise InvalidRequest(
            f"{num_prompts} prompts came with {len(params)} sampling_params: give one for all "
            "or one each",
            "sampling_params",
        )
    for one in params:
        if not isinstance(one, SamplingParams):
            raise InvalidRequest(
                f"sampling_params must hold SamplingParams, not {one!r}", "sampling_params"
            )
    return params


def _token_ids(given: object) -> list[int]:
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"token ids must be a list of integers, not {type(given).__name__}", "prompts"
        )
    token_ids = []
    for token_id in given:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise InvalidRequest(f"token ids must be integers, not {token_id!r}", "prompts")
        token_ids.append(int(token_id))
    return token_ids


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _ignore(_index: int, _output: RequestOutput) -> None:
    pass
