"""Reads what full blocks hold, from the token store into the chains of requests.

Called by the planners before blocks are matched or indexed, and by Endings.
"""

from everbatch.scheduler.plan import TokenStore
from everbatch.scheduler.request import Request


class ContentReader:
    """Reads ahead on request; nothing twice."""

    def __init__(self, tokens: TokenStore, block_size: int) -> None:
        self._tokens = tokens
        self._block_size = block_size

    def read_blocks(self, request: Request, num_blocks: int) -> None:
        """Let the request's chain know its first `num_blocks` full blocks."""
        chain, block_size = request.chain, self._block_size
        assert chain is not None
        num_known = len(chain.contents)
        if num_known < num_blocks:
            unknown, sample = range(num_known, num_blocks), request.sample
            chain.extend(
                self._tokens.read(request.id, request.payload, sample, unknown, block_size)
            )
