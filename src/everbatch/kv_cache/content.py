"""What a full block holds, as a chain of content hashes.

The hash of a block covers its tokens and the hash of the block before it, so equal hashes mean
equal prefixes. The chain starts from the request's `cache_salt`: requests with different salts
never share (timing of shared prefixes could tell one tenant what another asked). Hashes depend on
nothing else, so they are the same in every process. Source: vLLM v1, kv_cache_utils, block hashes.

A hash is a hint, not a proof: the pool compares tokens and parents as well (block_pool.match).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 16
TOKEN_BYTES = 4
"""Token ids travel as little-endian 32-bit integers."""

BlockHasher = Callable[[bytes, bytes], bytes]


class BlockContent(NamedTuple):
    """One full block of a request's token stream."""

    digest: bytes
    tokens: bytes


def root_digest(cache_salt: str) -> bytes:
    """Give the parent hash of a first block."""
    return blake2b(cache_salt.encode(), digest_size=DIGEST_BYTES, person=b"everbatch.salt").digest()


def hash_block(parent: bytes, tokens: bytes) -> bytes:
    """Give the hash of a block from its parent's hash and its own tokens."""
    return blake2b(parent + tokens, digest_size=DIGEST_BYTES).digest()


@dataclass(slots=True, eq=False)
class ContentChain:
    """The full blocks of one request's stream, as far as they have been read.

    `contents` only grows: recomputing a request reads nothing again. `entries` is the pool's: the
    entry under which each leading block is known; it is cut back when a request loses its blocks.
    """

    salt_digest: bytes
    block_size: int
    hasher: BlockHasher = hash_block
    contents: list[BlockContent] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def extend(self, tokens: bytes) -> None:
        """Read on: `tokens` are the bytes of any number of whole further blocks."""
        width = self.block_size * TOKEN_BYTES
        parent = self.contents[-1].digest if self.contents else self.salt_digest
        if len(tokens) == width:
            # One block at a time is what decoding brings.
            self.contents.append(BlockContent(self.hasher(parent, tokens), tokens))
            return
        assert len(tokens) % width == 0
        for start in range(0, len(tokens), width):
            block_tokens = tokens[start : start + width]
            parent = self.hasher(parent, block_tokens)
            self.contents.append(BlockContent(parent, block_tokens))

    def copy(self) -> "ContentChain":
        """Give a chain that grows on its own from here."""
        return ContentChain(
            self.salt_digest,
            self.block_size,
            self.hasher,
            list(self.contents),
            list(self.entries),
        )
