"""The blocks that holders of slots have a right to take later: nobody else may have them (I9).

With admission "reserve" every holder has a right to its whole life, and always a request that was
preempted as often as allowed. The sum is kept from step to step, so that asking costs what the plan
under way and the samples change, not what runs. Works on drafts, changes no request. Asked by
BlockLedger; kept by Lifecycle and Endings.
"""

from collections.abc import Iterable, Iterator

from everbatch.kv_cache.arithmetic import blocks_for_life
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.request import Request, SampleGroup


def held_blocks(draft: Draft, request: Request) -> int:
    """Count the blocks of a request with what a plan gives it."""
    given = len(draft.admitted.get(request, ())) + len(draft.new_blocks.get(request, ()))
    if draft.swapped_in:
        given += len(draft.swapped_in.get(request, ()))
    return len(request.block_table) + given


def blocks_of_life(request: Request, block_size: int) -> int:
    """Count the blocks of a request's whole life; of all samples while they are one."""
    num_prompt, num_samples = request.num_prompt_tokens, request.num_slots
    return blocks_for_life(num_prompt, request.max_tokens, block_size, num_samples)


class Rights:
    """What each holder may still take, as of the last boundary, and the sum."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        decodes: DecodeSet,
        groups: dict[str, SampleGroup],
    ) -> None:
        self._config = config
        self._pool = pool
        self._decodes = decodes
        self._groups = groups
        self._blocks: dict[Request, int] = {}
        self._total = 0

    def note(self, request: Request) -> None:
        """A request took a slot or blocks, or its samples have parted or become fewer."""
        self.forget(request)
        if request.slot is not None and self._has_right(request):
            self._blocks[request] = self._right(request, len(request.block_table))
            self._total += self._blocks[request]

    def forget(self, request: Request) -> None:
        """A request gave back its slot."""
        self._total -= self._blocks.pop(request, 0)

    def entitled(self, draft: Draft, but: Request | None = None) -> int:
        """Count the blocks that holders, and those who become such in this plan, may take later."""
        num_entitled = self._total - sum(self._blocks.get(r, 0) for r in draft.victims)
        for request in dict.fromkeys((*draft.new_blocks, *draft.admitted)):
            if self._counts(draft, request):
                num_entitled += self._right(request, held_blocks(draft, request))
                num_entitled -= self._blocks.get(request, 0)
        if but is not None and self._counts(draft, but):
            num_entitled -= self._right(but, held_blocks(draft, but))
        return num_entitled + self._copies(draft, but)

    def recounted(self, holders: Iterable[Request]) -> int:
        """Give the sum over all holders of slots from their tables alone; what was noted aside."""
        having = [request for request in holders if self._has_right(request)]
        rights = [self._right(request, len(request.block_table)) for request in having]
        return sum(rights) + self._copies(Draft(), None)

    def _has_right(self, request: Request) -> bool:
        is_reserved = self._config.admission == "reserve" and not request.is_follower
        return is_reserved or is_protected(request, self._config)

    def _counts(self, draft: Draft, request: Request) -> bool:
        """Whether a request has a right once the plan is carried out."""
        if request in draft.admitted:
            return self._has_right(request)
        return request in self._blocks and request not in draft.victims

    def _right(self, request: Request, num_held: int) -> int:
        return max(0, blocks_of_life(request, self._config.block_size) - num_held)

    def _copies(self, draft: Draft, but: Request | None) -> int:
        """Count the copies that samples will take of tails they still share.

        The readers of a tail need a copy each, but the last, who writes in place.
        """
        tails: dict[int, int] = {}
        for request in self._parted_samples():
            if request is not but and self._counts(draft, request):
                tail = self._shared_tail(draft, request)
                if tail is not None:
                    tails[tail] = tails.get(tail, 0) + 1
        own_tail = None if but is None else self._shared_tail(draft, but)
        return sum(
            min(num_readers, self._pool.ref_count(tail) - 1 - int(tail == own_tail))
            for tail, num_readers in tails.items()
        )

    def _parted_samples(self) -> Iterator[Request]:
        for group in self._groups.values():
            if group.has_forked:
                yield from group.samples

    def _shared_tail(self, draft: Draft, request: Request) -> int | None:
        """Give the last block of a sample if it is not full and others read it too."""
        if request.group is None or not request.block_table or request in draft.copies:
            return None
        tail = request.block_table[-1]
        size = self._config.block_size
        is_full = self._decodes.computed_tokens(request) == len(request.block_table) * size
        return tail if not is_full and self._pool.ref_count(tail) > 1 else None
