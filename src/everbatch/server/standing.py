"""What headers and API keys ask for in the queue: whose a request is, how soon, how long.

Belongs here: the headers that a gateway may set in place of body fields. Not here: the body
(protocol.py), the queue (scheduler). Used by the routes.

A header and a field that contradict each other are refused, and so is who contradicts its key, or
sends a header before the gateway's own: nobody can claim to be another tenant, or to be more urgent
than its key allows.
"""

import re
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers

from everbatch.server.api_keys import KeyOwner
from everbatch.server.errors import bad_request
from everbatch.server.protocol import MAX_PRIORITY, MAX_TENANT_LENGTH, MAX_WAIT_S, Common

TENANT_HEADER = "X-Tenant"
PRIORITY_HEADER = "X-Priority"
MAX_WAIT_HEADER = "X-Max-Wait-S"
MAX_TOTAL_HEADER = "X-Max-Total-S"
_INTEGER = re.compile(r"-?\d{1,10}")
_DECIMAL = re.compile(r"\d{1,9}(\.\d{1,9})?")


def with_headers(common: Common, headers: Headers, owner: KeyOwner) -> Common:
    """Fill in what the headers and the key's owner say; raises ApiError where they differ."""
    wanted = {
        "tenant": (TENANT_HEADER, _tenant(headers)),
        "priority": (PRIORITY_HEADER, _priority(headers)),
        "max_wait_s": (MAX_WAIT_HEADER, _seconds(headers, MAX_WAIT_HEADER, "max_wait_s")),
        "max_total_s": (MAX_TOTAL_HEADER, _seconds(headers, MAX_TOTAL_HEADER, "max_total_s")),
    }
    changes: dict[str, Any] = {}
    for field, (header, value) in wanted.items():
        in_body = getattr(common, field)
        if value is not None and in_body not in (None, value):
            raise _contradiction(field, in_body, header, value)
        changes[field] = in_body if value is None else value
    return _of_owner(replace(common, **changes), owner)


def _of_owner(common: Common, owner: KeyOwner) -> Common:
    """Hold a request against the key that it came with."""
    if owner.tenant is not None and common.tenant not in (None, owner.tenant):
        raise _contradiction("tenant", common.tenant, "the API key's tenant", owner.tenant)
    best = owner.priority
    if best is not None and common.priority is not None and common.priority < best:
        raise bad_request(
            f"priority is {common.priority}, the API key may ask for {best} and above (lower runs "
            "first): leave it out or raise it",
            "priority",
            "invalid_value",
        )
    return replace(
        common,
        tenant=common.tenant if owner.tenant is None else owner.tenant,
        priority=best if common.priority is None else common.priority,
    )


def _tenant(headers: Headers) -> str | None:
    value = _value(headers, TENANT_HEADER, "tenant")
    if len(value) > MAX_TENANT_LENGTH:
        raise bad_request(
            f"{TENANT_HEADER} has {len(value):,} characters, at most {MAX_TENANT_LENGTH} go",
            "tenant",
            "invalid_value",
        )
    return value or None


def _priority(headers: Headers) -> int | None:
    value = _value(headers, PRIORITY_HEADER, "priority")
    if not value:
        return None
    if not _INTEGER.fullmatch(value) or abs(int(value)) > MAX_PRIORITY:
        raise bad_request(
            f"{PRIORITY_HEADER} must be an integer in [-{MAX_PRIORITY}, {MAX_PRIORITY}], got "
            f"{value!r}",
            "priority",
            "invalid_value",
        )
    return int(value)


def _seconds(headers: Headers, header: str, field: str) -> float | None:
    value = _value(headers, header, field)
    if not value:
        return None
    if not _DECIMAL.fullmatch(value) or float(value) > MAX_WAIT_S:
        raise bad_request(
            f"{header} must be a number of seconds in [0, {MAX_WAIT_S}], got {value!r}",
            field,
            "invalid_value",
        )
    return float(value)


def _value(headers: Headers, header: str, field: str) -> str:
    """Give a header's value, nothing if it is not there; raises ApiError if it says two things."""
    values = list(dict.fromkeys(headers.getlist(header)))
    if len(values) > 1:
        shown = " and ".join(f"{value!r:.80}" for value in values[:2])
        raise bad_request(
            f"{header} came with {len(values)} values, {shown}: send one", field, "invalid_value"
        )
    return values[0] if values else ""


def _contradiction(field: str, in_body: object, header: str, in_header: object) -> Exception:
    return bad_request(
        f"{field} is {in_body!r} and {header} is {in_header!r}: give one of them",
        field,
        "invalid_value",
    )
