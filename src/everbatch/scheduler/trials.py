"""Finding out whose row makes passes fail, so that nobody else pays for it.

A pass fails as a whole: nobody knows by which of its rows, or whether by any. So it is tried once
more without those who were admitted in it, then each of them alone; if a group fails again, every
row of it alone. Who fails alone then ends with an error, all others lose time only. Groups are
tried in order, one a step, until none is left or those left cannot run; then plans are made as
always. Called by Scheduler.
"""

from collections.abc import Sequence

from everbatch.scheduler.draft import Draft
from everbatch.scheduler.request import Request

Group = dict[Request, None]
"""Requests that are tried together. Samples that share a prompt are named by who reads it."""


def rows_of(draft: Draft, members: Sequence[Request]) -> Group:
    """Give those who have a row in a step: `members` of the decode set, and prompts."""
    left = draft.left, draft.victims
    rows = {request: None for request in members if not any(request in gone for gone in left)}
    return {**rows, **draft.joined, **dict.fromkeys(draft.chunks)}


def groups_after(draft: Draft, rows: Group) -> list[Group]:
    """Give the groups to try after a step with these rows has failed."""
    if draft.num_tried:
        return [{request: None} for request in rows]
    others = {request: None for request in rows if request not in draft.admitted}
    if not others:
        return [rows]
    return [others, *({request: None} for request in draft.admitted if request in rows)]
