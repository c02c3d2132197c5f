"""What headers ask for in the queue: whose the request is, and how long it may wait.

Belongs here: the headers that a gateway may set in place of body fields. Not here: the body
(protocol.py), the queue (scheduler). Used by the routes.

A header and a field that contradict each other are refused: behind a gateway that sets the header,
nobody can claim to be another tenant.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from everbatch.server.errors import bad_request
from everbatch.server.protocol import MAX_TENANT_LENGTH, MAX_WAIT_S, Common

TENANT_HEADER = "X-Tenant"
MAX_WAIT_HEADER = "X-Max-Wait-S"
_DECIMAL = re.compile(r"\d{1,9}(\.\d{1,9})?")


def with_headers(common: Common, headers: Mapping[str, str]) -> Common:
    """Fill in what the headers say; raises ApiError where header and body differ."""
    tenant, max_wait_s = _tenant(headers), _max_wait_s(headers)
    if tenant is not None and common.tenant not in (None, tenant):
        raise _contradiction("tenant", common.tenant, TENANT_HEADER, tenant)
    if max_wait_s is not None and common.max_wait_s not in (None, max_wait_s):
        raise _contradiction("max_wait_s", common.max_wait_s, MAX_WAIT_HEADER, max_wait_s)
    return replace(
        common,
        tenant=common.tenant if tenant is None else tenant,
        max_wait_s=common.max_wait_s if max_wait_s is None else max_wait_s,
    )


def _tenant(headers: Mapping[str, str]) -> str | None:
    value = headers.get(TENANT_HEADER.lower(), "")
    if len(value) > MAX_TENANT_LENGTH:
        raise bad_request(
            f"{TENANT_HEADER} has {len(value):,} characters, at most {MAX_TENANT_LENGTH} go",
            "tenant",
            "invalid_value",
        )
    return value or None


def _max_wait_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get(MAX_WAIT_HEADER.lower(), "")
    if not value:
        return None
    if not _DECIMAL.fullmatch(value) or float(value) > MAX_WAIT_S:
        raise bad_request(
            f"{MAX_WAIT_HEADER} must be a number of seconds in [0, {MAX_WAIT_S}], got {value!r}",
            "max_wait_s",
            "invalid_value",
        )
    return float(value)


def _contradiction(field: str, in_body: object, header: str, in_header: object) -> Exception:
    return bad_request(
        f"{field} is {in_body!r} and {header} is {in_header!r}: give one of them",
        field,
        "invalid_value",
    )
