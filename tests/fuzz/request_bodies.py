"""Bodies of requests. The first byte of an input says for which path."""

from datetime import datetime
from functools import cache

from fuzz.target import Target
from server.fakes import byte_tokenizer
from starlette.datastructures import Headers

from everbatch.base.errors import InvalidRequest
from everbatch.engine.token_checks import check_min_tokens, check_sampling_ids, check_token_ids
from everbatch.server.api_keys import KeyOwner
from everbatch.server.chat_messages import read_messages
from everbatch.server.errors import ApiError
from everbatch.server.fields import Fields, decode_object
from everbatch.server.protocol import ChatRequest, read_chat, read_completion
from everbatch.server.responses_fields import ResponsesRequest, read_responses
from everbatch.server.side_bodies import read_abort, read_detokenize, read_tokenize
from everbatch.server.standing import with_headers
from everbatch.server.tool_use import check_tools, tool_use

VOCAB_SIZE = 300
TEMPLATE = (
    "{% if tools %}<tool_call>arguments{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
)


@cache
def _tokenizer():
    return byte_tokenizer(TEMPLATE)


def _completion(body: bytes) -> None:
    wanted = read_completion(body, 16)
    common = with_headers(wanted.common, Headers({"x-tenant": "a"}), KeyOwner())
    check_sampling_ids(common.sampling, VOCAB_SIZE)
    check_min_tokens(common.sampling, 10)
    for prompt in wanted.prompts:
        if not isinstance(prompt, str):
            check_token_ids(prompt, VOCAB_SIZE)


def _chat(body: bytes) -> None:
    _conversation(read_chat(body), "messages")


def _responses(body: bytes) -> None:
    _conversation(read_responses(body), "input")


def _conversation(wanted: ChatRequest | ResponsesRequest, field: str) -> None:
    use = tool_use(wanted.common, wanted.messages, wanted.tools, _tokenizer(), field)
    _tokenizer().chat_template.render(
        wanted.messages,
        now=datetime(2025, 1, 1),
        variables=wanted.template_variables,
        tools=[tool.shown for tool in use.tools],
    )


def _tokenize(body: bytes) -> None:
    wanted = read_tokenize(body)
    if wanted.messages is not None:
        check_tools(wanted.messages, wanted.tools, _tokenizer().chat_template)


def _detokenize(body: bytes) -> None:
    check_token_ids(read_detokenize(body).tokens, VOCAB_SIZE, "tokens")


def _messages(body: bytes) -> None:
    read_messages(Fields(decode_object(body)))


_READERS = {
    ord("c"): _completion,
    ord("h"): _chat,
    ord("r"): _responses,
    ord("t"): _tokenize,
    ord("d"): _detokenize,
    ord("a"): read_abort,
    ord("m"): _messages,
}


def _read(data: bytes) -> None:
    reader = _READERS.get(data[0]) if data else None
    for one in [reader] if reader is not None else _READERS.values():
        _told(one, data[1:])


def _told(reader, body: bytes) -> None:
    try:
        reader(body)
    except ApiError as error:
        # What is said of it must be writable, too.
        assert error.body()
        raise


_TOOL = (
    b'{"type":"function","function":{"name":"f","description":"d","parameters":'
    b'{"type":"object","properties":{"city":{"type":"string"}}},"strict":true}}'
)

_SEEDS = (
    b'c{"prompt":"x","max_tokens":5,"n":2,"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,'
    b'"seed":7,"stop":["a","b"],"logit_bias":{"5":1.5},"logprobs":3,"echo":true,"user":"u",'
    b'"priority":3,"tenant":"a","max_wait_s":5,"max_total_s":9.5,"cache_salt":"s",'
    b'"metadata":{"a":"b"},'
    b'"stop_token_ids":[1,2],"min_tokens":2,"presence_penalty":1,"frequency_penalty":-1,'
    b'"repetition_penalty":1.1,"best_of":1,"suffix":"","ignore_eos":true}',
    b'c{"prompt":[[1,2],"x"],"stream":true,"stream_options":{"include_usage":true,'
    b'"continuous_usage_stats":true},"response_format":{"type":"json_object"}}',
    b'h{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text",'
    b'"text":"t"}],"name":"n"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":'
    b'"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]},{"role":"tool","content":"r",'
    b'"tool_call_id":"1"}],"tools":[' + _TOOL + b'],"tool_choice":"required","logprobs":true,'
    b'"top_logprobs":2,"max_completion_tokens":9,"chat_template_kwargs":{"a":[1]},'
    b'"parallel_tool_calls":false}',
    b'h{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",'
    b'"json_schema":{"name":"n","strict":true,"schema":{"type":"object","properties":{"a":{"type":'
    b'"integer"}}}}},"tool_choice":{"type":"function","function":{"name":"f"}},"tools":['
    + _TOOL
    + b"]}",
    b'r{"input":[{"role":"user","content":[{"type":"input_text","text":"x"}],"type":"message"}],'
    b'"instructions":"i","max_output_tokens":4,"include":["message.output_text.logprobs"],'
    b'"top_logprobs":2,"text":{"format":{"type":"json_schema","name":"n","schema":{}}},'
    b'"stream":true}',
    b't{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false,"tools":['
    + _TOOL
    + b'],"return_token_strs":true}',
    b't{"prompt":"x","add_special_tokens":false}',
    b'd{"tokens":[1,2,299]}',
    b'a{"request_ids":["a","b"]}',
    b'm{"messages":[{"role":"user","content":"x"}]}',
    b'c{"prompt":"x","structured_outputs":{"regex":"a|b"}}',
    b'c{"prompt":"x","guided_choice":["a","b"]}',
)

TARGET = Target(
    "request",
    _read,
    (ApiError, InvalidRequest),
    lambda: list(_SEEDS),
    (
        *(
            b'"guided_json":',
            b'"guided_regex":',
            b'"structured_outputs":',
            b'"grammar":',
            b'"json":',
        ),
        *(b'"tool_choice":', b'"tools":', b'"tool_calls":', b'"function":', b'"arguments":'),
        *(b'"prompt_logprobs":', b'"top_logprobs":', b'"stop":', b'"logit_bias":', b'"messages":'),
        *(b'"content":', b'"stream_options":', b'"response_format":', b'"metadata":', b'"n":'),
        *(b'"stop_token_ids":', b'"strict":', b'"schema":', b'"input":', b'"text":', b'"format":'),
    ),
)
