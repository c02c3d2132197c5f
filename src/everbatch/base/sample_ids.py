"""The ids of samples: those of a request "a" with several are "a/0", "a/1" and so on.

Belongs here: the spelling, made and taken apart in this one place. Not here: whether an id that
looks like a sample's is one, since a client may call a request "a/0" too; who asks has to know the
request.
"""

_SEPARATOR = "/"


def sample_id(request_id: str, number: int) -> str:
    """Give the id of one sample of a request with several."""
    return f"{request_id}{_SEPARATOR}{number}"


def sample_ids(request_id: str, num_samples: int) -> list[str]:
    """Give the ids under which a request runs: its own, or those of its samples by number."""
    if num_samples == 1:
        return [request_id]
    return [sample_id(request_id, number) for number in range(num_samples)]


def request_of_sample(id: str) -> str | None:
    """Give the request that `id` would be a sample of; None if no sample can be called so."""
    request_id, separator, number = id.rpartition(_SEPARATOR)
    is_number = number.isascii() and number.isdecimal()
    return request_id if separator and is_number else None
