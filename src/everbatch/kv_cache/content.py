"""What a full block holds, as a chain of content hashes.

The hash of a block covers its tokens and the hash of the block before it, so equal hashes mean
equal prefixes. The chain starts from the request's `cache_salt`: requests with different salts
never share (timing of shared prefixes could tell one tenant what another asked). Hashes depend on
nothing else, so they are the same in every process. Source: vLLM v1, kv_cache_utils, block hashes.

A hash is a hint, not a proof: the pool compares tokens and parents as well (block_pool.match).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 16
TOKEN_BYTES = 4
"""Of a token id, a little-endian 32-bit integer."""

BlockHasher = Callable[[bytes, bytes], bytes]


class BlockContent(NamedTuple):
    """One full block of a request's token stream."""

    digest: bytes
    tokens: bytes
    """Or what stands for them, and for no others (scheduler.plan.TokenStore)."""


def in_blocks(tokens: bytes, block_size: int) -> list[bytes]:
    """Cut the bytes of token ids into those of blocks; there is no rest."""
    width = block_size * TOKEN_BYTES
    assert len(tokens) % width == 0
    return [tokens[start : start + width] for start in range(0, len(tokens), width)]


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

    def extend(self, blocks: Iterable[bytes]) -> None:
        """Read on: what the next whole blocks hold."""
        parent = self.contents[-1].digest if self.contents else self.salt_digest
        for tokens in blocks:
            parent = self.hasher(parent, tokens)
            self.contents.append(BlockContent(parent, tokens))

    def copy(self) -> "ContentChain":
        """Give a chain that grows on its own from here."""
        return ContentChain(
            self.salt_digest,
            self.block_size,
            self.hasher,
            list(self.contents),
            list(self.entries),
        )
