"""Text and messages to token ids, beside the event loop where that takes long.

Belongs here: templates and encoding for the routes. Not here: the templates and the vocabulary
themselves (tokenizer).
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from everbatch.server.chat_messages import Message
from everbatch.server.fields import Json
from everbatch.server.protocol import Prompt
from everbatch.server.served import Served
from everbatch.server.tool_calls import Tool
from everbatch.tokenizer.chat_template import TakesLong

# Above it a text is encoded on another thread, so that the streams do not wait for it. 8 k
# characters take about a millisecond, 4 MiB half a second.
MAX_INLINE_CHARACTERS = 8_192
# A template is the model's own program; a million steps may take seconds.
MAX_INLINE_STEPS = 10_000


class Encoding:
    """The text side of one served model."""

    def __init__(self, served: Served) -> None:
        self._clock = served.clock
        self._tokenizer = served.model.tokenizer

    async def prompt_ids(self, prompt: Prompt, *, add_special_tokens: bool) -> Sequence[int]:
        """Give the ids of a prompt, which may be ids already."""
        if not isinstance(prompt, str):
            return prompt
        encode = self._tokenizer.encode
        if len(prompt) <= MAX_INLINE_CHARACTERS:
            return encode(prompt, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(encode, prompt, add_special_tokens=add_special_tokens)

    async def chat_ids(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Json],
        tools: Sequence[Tool] = (),
        *,
        num_bytes: int,
        add_generation_prompt: bool = True,
    ) -> Sequence[int]:
        """Give the ids of a conversation as the model's template writes it.

        `num_bytes`: of the body that it came in, tools and variables too.
        """
        render = partial(
            self._tokenizer.chat_template.render,
            messages,
            now=datetime.fromtimestamp(self._clock.unix_seconds()),
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            tools=[tool.shown for tool in tools],
        )
        try:
            is_compiled = self._tokenizer.chat_template.is_compiled
            if num_bytes > MAX_INLINE_CHARACTERS or not is_compiled:
                raise TakesLong
            text = render(max_steps=MAX_INLINE_STEPS)
        except TakesLong:
            text = await asyncio.to_thread(render)
        # The template writes the special tokens itself.
        return await self.prompt_ids(text, add_special_tokens=False)

    def text_of(self, prompt: Prompt, *, skip_special_tokens: bool) -> str:
        """Give a prompt as text."""
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=skip_special_tokens)
