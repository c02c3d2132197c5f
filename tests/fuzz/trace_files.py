"""Traces of all formats, compressed or not: read to their rows, and to requests."""

import gzip
from functools import cache
from itertools import islice
from pathlib import Path

from fuzz.target import Target, scratch_folder

from everbatch.base.errors import ConfigError
from everbatch.calibration.request_log import is_request_log, read_request_log
from everbatch.workload.traces.formats import FORMATS, open_trace

SAMPLES = Path(__file__).parents[1] / "unit" / "workload" / "trace_files"
MAX_ROWS = 2_000


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    """The first byte of an input says as which format it is read: any that is none is detected."""
    number = data[0] if data else 255
    path = _folder() / "trace"
    path.write_bytes(data[1:])
    if number == len(FORMATS):
        if is_request_log(path):
            read_request_log(path)
        return
    trace = open_trace(path, FORMATS[number] if number < len(FORMATS) else None)
    for _ in islice(trace.rows(), MAX_ROWS):
        pass
    assert trace.title


_BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
)
_PLAIN = (
    b'{"arrival":0.5,"prompt_tokens":10,"output_tokens":3,"tenant":"a","priority":1}\n'
    b'{"arrival":1,"prompt_tokens":20,"output_tokens":5,"hash_ids":[1,2],"block_size":16}\n'
)
_EVENTS = (
    b'{"event":"header","version":1,"config":{"block_size":16},"clock":"ns"}\n'
    b'{"event":"arrived","t":5,"id":"a","prompt_tokens":4,"max_tokens":3,"priority":0,'
    b'"tenant":""}\n'
    b'{"event":"finished","t":9,"step":3,"id":"a","reason":"length","output_tokens":3,'
    b'"cached_tokens":0,"recomputed_tokens":0,"preemptions":0}\n'
)
_REQUEST_LOG = b'{"arrival":0.0,"first_token":0.5,"end":1.5,"prompt_tokens":10,"output_tokens":3}\n'


def _seeds() -> list[bytes]:
    texts = [path.read_bytes() for path in sorted(SAMPLES.iterdir()) if path.suffix != ".md"]
    texts += [_BURSTGPT, _PLAIN, _EVENTS]
    packed = [gzip.compress(text, mtime=0) for text in texts[:2]]
    told = [bytes([number]) + text for text in texts for number in range(len(FORMATS))]
    logs = [bytes([len(FORMATS)]) + text for text in (_REQUEST_LOG, _PLAIN)]
    return [*(b"\xff" + text for text in (*texts, *packed)), *told, *logs]


TARGET = Target(
    "trace",
    _read,
    (ConfigError,),
    _seeds,
    (
        *(
            b'"hash_ids":',
            b'"timestamp":',
            b'"input_length":',
            b'"arrival_time":',
            b'"block_size":',
        ),
        *(b"2023-11-16 18:17:03.9799600", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", b"+00:00"),
        *(
            b",,",
            b'"',
            b"\r",
            b"\n\n",
            b"1E5",
            b"1e400000000",
            b"0x10",
            b"\x1f\x8b",
            b"-0",
            b"\xef\xbb\xbf",
        ),
    ),
)
