"""`LLM.generate` for scripts: prompts in, texts out, with vLLM's names.

Belongs here: the offline face. Not here: serving (server), putting an engine together (assemble).

    from everbatch import LLM, SamplingParams
    llm = LLM()
    [answer] = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    print(answer.outputs[0].text)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import count

import numpy as np

from everbatch.assemble.options import EngineOptions
from everbatch.assemble.real import Progress, RealEngine, build_engine
from everbatch.base.errors import ConfigError, InvalidRequest
from everbatch.engine.engine import EngineRequest, StepResult, TokenOutput
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.scheduler.request import FinishReason
from everbatch.tokenizer.text_stream import TextStream
from everbatch.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, object]
"""Text, token ids, or vLLM's {"prompt": …} and {"prompt_token_ids": …}."""

OnFinished = Callable[[int, "RequestOutput"], None]
"""Hears of each answer as it ends, with the position of its prompt."""

MAX_QUEUED = 4_096
"""Requests handed to the engine ahead of time; the rest is tokenized when there is room."""


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `stop_reason` is the stop string or stop token id that ended it, if one did."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what came of it. `prompt` is None if token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False


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
        self, model: str | None = None, *, progress: Progress | None = None, **options: object
    ) -> None:
        known = {item.name for item in fields(EngineOptions)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigError(
                f"LLM knows no option {', '.join(unknown)}; it knows {', '.join(sorted(known))}"
            )
        self._real = build_engine(EngineOptions(model=model, **options), progress)  # type: ignore[arg-type]
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

        Raises InvalidRequest, before anything runs, if one of them can never run.
        """
        return self._run(*self._paired(prompts, sampling_params), on_finished)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        sampling_params: SamplingParams | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation through the model's chat template."""
        return self.generate([self.encode_chat(messages)], sampling_params)

    def encode_chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Give the token ids of a conversation, ready for the model's turn."""
        text = self._real.tokenizer.chat_template.render(messages, now=datetime.now())
        return self._real.tokenizer.encode(text, add_special_tokens=False)

    def close(self) -> None:
        """Write what is left of the event log."""
        self._real.close()

    def _paired(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> tuple[list[Prompt], list[SamplingParams]]:
        listed = _listed(prompts)
        if isinstance(sampling_params, Sequence):
            params = list(sampling_params)
        else:
            params = [sampling_params or SamplingParams()] * len(listed)
        if len(params) != len(listed):
            raise InvalidRequest(
                f"{len(listed)} prompts came with {len(params)} sampling_params: give one for all "
                "or one each",
                "sampling_params",
            )
        return listed, params

    def _run(
        self,
        prompts: list[Prompt],
        params: list[SamplingParams],
        on_finished: OnFinished | None,
    ) -> list[RequestOutput]:
        engine = self._real.engine
        encoded = [self._encode(prompt) for prompt in prompts]
        for (_, token_ids), of_prompt in zip(encoded, params, strict=True):
            self._check(token_ids, of_prompt)
        running: dict[str, _Running] = {}
        results: list[RequestOutput] = []
        pending = zip(encoded, params, strict=True)
        try:
            self._fill(pending, running, results)
            while running:
                self._take(engine.step(), running, on_finished)
                self._fill(pending, running, results)
        finally:
            # An interrupt, or an error above: nothing of this call may go on running.
            for request_id in running:
                engine.abort(request_id)
        return results

    def _fill(
        self,
        pending: Iterator[tuple[tuple[str | None, list[int]], SamplingParams]],
        running: dict[str, _Running],
        results: list[RequestOutput],
    ) -> None:
        while len(running) < MAX_QUEUED:
            following = next(pending, None)
            if following is None:
                return
            (text, token_ids), params = following
            request_id = f"offline-{next(self._ids)}"
            output = RequestOutput(request_id, text, token_ids, [CompletionOutput(0)])
            ids = np.asarray(token_ids, np.int32)
            rejection = self._real.engine.add(
                EngineRequest(request_id, ids, len(token_ids), params)
            )
            assert rejection is None, "the limits were checked before"
            stream = TextStream(self._real.tokenizer, params)
            running[request_id] = _Running(len(results), output, params, stream)
            results.append(output)

    def _take(
        self,
        result: StepResult,
        running: dict[str, _Running],
        on_finished: OnFinished | None,
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
                self._finish(request, reason, result.error)
                if on_finished is not None:
                    on_finished(request.index, request.output)

    def _push(self, request: _Running, token: TokenOutput, *, is_stop_token: bool) -> bool:
        """Add a token; gives whether a stop string was found."""
        completion = request.output.outputs[0]
        completion.token_ids.append(token.token_id)
        if token.logprobs is not None:
            completion.logprobs = [*(completion.logprobs or ()), token.logprobs]
        delta = request.stream.push(token.token_id, ends_request=is_stop_token)
        completion.text += delta.text
        if delta.stopped is not None:
            completion.stop_reason = delta.stopped
        elif is_stop_token and token.token_id in request.params.stop_token_ids:
            completion.stop_reason = token.token_id
        return delta.stopped is not None

    def _finish(self, request: _Running, reason: FinishReason, error: str | None) -> None:
        completion = request.output.outputs[0]
        rest = request.stream.finish()
        completion.text += rest.text
        if rest.stopped is not None:
            completion.stop_reason = rest.stopped
            reason = FinishReason.STOP
        completion.finish_reason = reason.value if error is None else f"{reason.value}: {error}"
        request.output.finished = True

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Give the text, if it came as text, and the token ids."""
        if isinstance(prompt, Mapping):
            keys = sorted(set(prompt) - {"prompt", "prompt_token_ids"})
            if keys or len(prompt) != 1:
                raise InvalidRequest(
                    'a prompt given as a dict has "prompt" or "prompt_token_ids", not '
                    f"{', '.join(map(repr, prompt))}",
                    "prompts",
                )
            [prompt] = prompt.values()  # type: ignore[assignment]
        if isinstance(prompt, str):
            return prompt, self._real.tokenizer.encode(prompt)
        token_ids = list(prompt) if isinstance(prompt, Iterable) else [prompt]
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise InvalidRequest(f"token ids must be integers, not {token_id!r}", "prompts")
        return None, [int(token_id) for token_id in token_ids]  # type: ignore[call-overload]

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        vocab_size = self._real.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is not in the vocabulary of {vocab_size:,}", "prompts"
                )
        rejection = self._real.engine.refusal(len(token_ids), params.max_tokens)
        if rejection is not None:
            raise InvalidRequest(rejection.message, "prompts")


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from a list of prompts."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if len(prompts) > 0 and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
