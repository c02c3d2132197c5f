"""The loop behind `LLM.generate` and `LLM.chat`: requests in, steps, answers out.

Belongs here: the class. Not here: its records (outputs.py), what may be given as prompts
(prompts.py), putting an engine together (assemble).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from everbatch.assemble.interrupts import interrupts_between_steps
from everbatch.assemble.model_source import Progress
from everbatch.assemble.options import EngineOptions
from everbatch.assemble.real import RealEngine, build_engine
from everbatch.base.errors import ConfigError, InvalidRequest
from everbatch.engine.engine import EngineRequest, StepResult, TokenOutput
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.engine.token_checks import (
    check_min_tokens,
    check_priority,
    check_sampling_ids,
    check_token_ids,
)
from everbatch.llm.logprobs import prompt_logprobs, token_logprobs
from everbatch.llm.outputs import CompletionOutput, RequestOutput
from everbatch.llm.prompts import (
    Message,
    Prompt,
    is_list,
    listed,
    one_each,
    paired,
    token_ids_of,
)
from everbatch.scheduler.config import TenantConfig
from everbatch.scheduler.request import FinishReason
from everbatch.tokenizer.text_stream import TextStream
from everbatch.tokenizer.tokenizer import Tokenizer

OnFinished = Callable[[int, RequestOutput], None]
"""Hears of each answer as it ends, with the position of its prompt."""

MAX_QUEUED = 4_096
"""Requests handed to the engine ahead of time; the rest follows when there is room."""


@dataclass(slots=True)
class _Wanted:
    """A prompt that can run."""

    index: int
    text: str | None
    token_ids: list[int]
    params: SamplingParams
    priority: int
    tenant: str


@dataclass(slots=True)
class _Running:
    """A request under way."""

    wanted: _Wanted
    request: EngineRequest
    output: RequestOutput
    num_open: int
    """Samples that have not ended."""


@dataclass(slots=True)
class _Sample:
    """One sample of a request, and the text that comes of it."""

    request: _Running
    completion: CompletionOutput
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
        if isinstance(options.get("tenants"), Mapping):
            options["tenants"] = {
                name: _tenant(name, one) for name, one in options["tenants"].items()
            }
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
        priority: Sequence[int] | None = None,
        tenant: Sequence[str] | None = None,
        on_finished: OnFinished | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, in their order; one SamplingParams for all, or one each.

        `priority` (lower runs first, under policy priority) and `tenant` (under policy vtc): one
        for each prompt. Raises InvalidRequest, before anything runs, if one of them can never run.
        Ctrl-C takes effect between two steps: the engine can be used again.
        """
        given = listed(prompts)
        params = paired(sampling_params, len(given))
        priorities = one_each("priority", priority, 0, len(given))
        tenants = one_each("tenant", tenant, "", len(given))
        self._check_priorities(priorities)
        _check_tenants(tenants)
        rows = zip(given, params, priorities, tenants, strict=True)
        wanted = [
            self._wanted(index, prompt, of_prompt, level, name, is_one_of_many=len(given) > 1)
            for index, (prompt, of_prompt, level, name) in enumerate(rows)
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
        several = is_list(messages) and messages and is_list(messages[0])
        conversations = messages if several else [messages]
        prompts = [self.encode_chat(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, on_finished=on_finished)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Give the token ids of a conversation, ready for the model's turn."""
        if not is_list(messages) or not messages:
            raise InvalidRequest(
                'messages must be a list of at least one {"role": …, "content": …}', "messages"
            )
        text = self._real.tokenizer.chat_template.render(messages, now=datetime.now())
        return self._real.tokenizer.encode(text, add_special_tokens=False)

    def check(self, prompt: Prompt, sampling_params: SamplingParams) -> list[int]:
        """Give the token ids of a prompt; raises InvalidRequest if it can never run."""
        return self._wanted(0, prompt, sampling_params, 0, "", is_one_of_many=False).token_ids

    def close(self) -> None:
        """Write what is left of the event log."""
        self._real.close()

    def _check_priorities(self, priorities: Sequence[int]) -> None:
        policy = self._real.engine.config.policy
        for one in priorities:
            if isinstance(one, bool) or not isinstance(one, int):
                raise InvalidRequest(f"priority must hold integers, not {one!r}", "priority")
            check_priority(one, policy, 'make the LLM with policy="priority"')

    def _wanted(
        self,
        index: int,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        tenant: str,
        *,
        is_one_of_many: bool,
    ) -> _Wanted:
        """Check a prompt; the error tells its index where there are several."""
        try:
            text, token_ids = self._encode(prompt)
            # Checked again, and nobody's to change from here on.
            snapshot = replace(params)
            self._check(token_ids, snapshot)
        except InvalidRequest as error:
            if not is_one_of_many:
                raise
            raise InvalidRequest(f"prompts[{index}]: {error}", error.param) from error
        return _Wanted(index, text, token_ids, snapshot, priority, tenant)

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
            return (None, token_ids_of(token_ids)) if text is None else self._encode(text)
        if isinstance(prompt, str):
            return prompt, self._real.tokenizer.encode(prompt)
        return None, token_ids_of(prompt)

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        engine, vocab_size = self._real.engine, self._real.vocab_size
        check_token_ids(token_ids, vocab_size)
        check_sampling_ids(params, vocab_size)
        if params.structured_outputs is not None:
            self._real.grammars.check(params.structured_outputs)
        check_min_tokens(params, engine.max_output_tokens(len(token_ids), params.n))
        rejection = engine.refusal(len(token_ids), params.max_tokens, params.n)
        if rejection is not None:
            raise InvalidRequest(rejection.message, "prompts")

    def _run(self, wanted: list[_Wanted], on_finished: OnFinished) -> list[RequestOutput]:
        engine = self._real.engine
        results = [_output(next(self._ids), one) for one in wanted]
        running: dict[str, _Sample] = {}
        pending = deque(zip(wanted, results, strict=True))
        is_between_steps = True
        try:
            with interrupts_between_steps() as check_interrupt:
                self._fill(pending, running, on_finished)
                while running:
                    check_interrupt()
                    is_between_steps = False
                    result = engine.step()
                    is_between_steps = True
                    self._take(result, running, on_finished)
                    self._fill(pending, running, on_finished)
        finally:
            # After an interrupt, or an error above, nothing of this call may go on running.
            for sample_id in running:
                engine.abort(sample_id)
            # Aborts, those of stop strings too, are told at a boundary.
            if is_between_steps and engine.has_work:
                engine.step()
        return results

    def _fill(
        self,
        pending: deque[tuple[_Wanted, RequestOutput]],
        running: dict[str, _Sample],
        on_finished: OnFinished,
    ) -> None:
        """Hand requests to the engine, as many as may wait there."""
        engine = self._real.engine
        while pending and len(running) < MAX_QUEUED:
            wanted, output = pending[0]
            # A full queue is no refusal here: there is room later, unless nobody is in the way.
            if running and not engine.has_queue_room(len(wanted.token_ids)):
                return
            pending.popleft()
            self._add(wanted, output, running, on_finished)

    def _add(
        self,
        wanted: _Wanted,
        output: RequestOutput,
        running: dict[str, _Sample],
        on_finished: OnFinished,
    ) -> None:
        request = EngineRequest(
            output.request_id,
            np.asarray(wanted.token_ids, np.int32),
            len(wanted.token_ids),
            wanted.params,
            priority=wanted.priority,
            tenant=wanted.tenant,
            n=wanted.params.n,
        )
        rejection = self._real.engine.add(request)
        if rejection is not None:
            # Whatever else would refuse it was checked before: its tenant's rate, or a queue that
            # can never hold it.
            for completion in output.outputs:
                completion.finish_reason = FinishReason.ERROR.value
                completion.error = rejection.message
            output.finished = True
            on_finished(wanted.index, output)
            return
        started = _Running(wanted, request, output, wanted.params.n)
        for sample_id, completion in zip(request.sample_ids, output.outputs, strict=True):
            stream = TextStream(self._real.tokenizer, wanted.params)
            running[sample_id] = _Sample(started, completion, stream)

    def _take(
        self, result: StepResult, running: dict[str, _Sample], on_finished: OnFinished
    ) -> None:
        ended = dict(result.finished)
        for token in result.outputs:
            sample = running.get(token.request_id)
            if sample is None:
                continue
            is_stop = ended.get(token.request_id) is FinishReason.STOP
            if self._push(sample, token, is_stop_token=is_stop):
                self._real.engine.abort(token.request_id, FinishReason.STOP)
                ended[token.request_id] = FinishReason.STOP
        for sample_id, reason in ended.items():
            sample = running.pop(sample_id, None)
            if sample is not None:
                request = sample.request
                _finish(sample, reason, result.error)
                request.num_open -= 1
                if request.num_open == 0:
                    request.output.finished = True
                    request.output.prompt_logprobs = prompt_logprobs(
                        self._real.tokenizer,
                        request.wanted.token_ids,
                        request.request.prompt_logprobs,
                    )
                    on_finished(request.wanted.index, request.output)

    def _push(self, sample: _Sample, token: TokenOutput, *, is_stop_token: bool) -> bool:
        """Add a token; gives whether a stop string was found."""
        completion = sample.completion
        completion.token_ids.append(token.token_id)
        if token.logprobs is not None:
            self._add_logprobs(completion, token.token_id, token.logprobs)
        delta = sample.stream.push(token.token_id, ends_request=is_stop_token)
        completion.text += delta.text
        if delta.stopped is not None:
            completion.stop_reason = delta.stopped
        elif is_stop_token and token.token_id in sample.request.wanted.params.stop_token_ids:
            completion.stop_reason = token.token_id
        return delta.stopped is not None

    def _add_logprobs(
        self, completion: CompletionOutput, token_id: int, of_token: TokenLogprobs
    ) -> None:
        told = token_logprobs(self._real.tokenizer, token_id, of_token)
        if completion.logprobs is None:
            completion.logprobs = []
        completion.logprobs.append(told)
        completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + of_token.logprob


def _output(number: int, wanted: _Wanted) -> RequestOutput:
    completions = [CompletionOutput(index) for index in range(wanted.params.n)]
    return RequestOutput(f"offline-{number}", wanted.text, wanted.token_ids, completions)


def _finish(sample: _Sample, reason: FinishReason, error: str | None) -> None:
    completion = sample.completion
    rest = sample.stream.finish()
    completion.text += rest.text
    if rest.stopped is not None and reason is not FinishReason.ERROR:
        completion.stop_reason = rest.stopped
        reason = FinishReason.STOP
    completion.finish_reason = reason.value
    if reason is FinishReason.ERROR:
        completion.error = error or "the model gave no finite numbers for this request"


def _check_tenants(tenants: Sequence[object]) -> None:
    for one in tenants:
        if not isinstance(one, str):
            raise InvalidRequest(f"tenant must hold text, not {one!r}", "tenant")


def _tenant(name: str, given: object) -> object:
    """Take a tenant's options by name too; what is wrong with others is told later."""
    if not isinstance(given, Mapping):
        return given
    unknown = sorted(set(given) - {item.name for item in fields(TenantConfig)})
    if unknown:
        raise ConfigError(f"tenant {name!r} has the unknown option {', '.join(map(str, unknown))}")
    return TenantConfig(**given)


def _ignore(_index: int, _output: RequestOutput) -> None:
    pass
