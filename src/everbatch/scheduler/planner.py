"""Decides one step: who decodes, whose prompt goes on, who is admitted, who must yield.

Reads the scheduler's state and reserves blocks in the pools, inside their transactions; changes
nothing else. What it decided is a Draft, which the lifecycle commits once the step has run.

Order (Sarathi-Serve, section 4.2; vLLM V1, decode-first): decodes in order of admission, then
prompts that have begun, then the queue in the policy's order. Prompts may have a share of the step
kept for them (min_prefill_tokens), or go first once they have waited long (prefill_aging_steps);
what they leave goes back to the decodes. Called by Scheduler.
"""

from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.decode_planner import DecodePlanner
from everbatch.scheduler.draft import Draft, Known
from everbatch.scheduler.grants import Grants
from everbatch.scheduler.preemption import choose_victim
from everbatch.scheduler.prefill_planner import PrefillPlanner
from everbatch.scheduler.state import SchedulerState
from everbatch.scheduler.static_planner import StaticPlanner


class Planner:
    """Plans steps over one state."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        reader: ContentReader,
        known: Known,
    ) -> None:
        self._config = config
        self._state = state
        self._blocks = BlockLedger(config, state, state.policy)
        self._grants = Grants(config, state, reader, self._blocks, known)
        self._decodes = DecodePlanner(config, state, self._blocks, known, reader)
        self._prefills = PrefillPlanner(config, state, self._blocks, self._grants)
        self._static = StaticPlanner(config, state, self._grants)

    def plan(self, *, keep_share: bool = True) -> Draft:
        """Decide the next step; the pools' transactions must be open.

        keep_share: whether to keep the share of prompts where the options say so.
        """
        draft = Draft()
        if keep_share:
            draft.prefill_share = self._prefill_share()
            draft.had_share = draft.prefill_share > 0
        limit = self._config.max_num_batched_tokens - draft.prefill_share
        held_back = self._decodes.plan(draft, limit)
        self._prefills.plan_begun(draft)
        if not draft.victims and len(self._state.policy.queue):
            # Nobody is admitted in a step that preempts.
            if self._config.batching == "static":
                self._static.plan_admissions(draft)
            else:
                self._prefills.plan_admissions(draft)
        if held_back:
            self._decodes.give_back(draft, held_back)
            self._decodes.note_lacks(draft, held_back)
        self._decodes.read_filling(draft)
        return draft

    def plan_trial(self, number: int) -> Draft:
        """Decide a step of one group of the trials alone; the pools' transactions must be open."""
        group = self._state.trials[number]
        draft = Draft(num_tried=number + 1)
        self._decodes.plan_only(draft, group)
        self._prefills.plan_begun(draft, group)
        if not draft.victims:
            self._prefills.admit_only(draft, group)
        self._decodes.read_filling(draft)
        return draft

    def plan_yield(self, stuck: Draft) -> Draft:
        """Decide who yields so that others can run; the pools' transactions must be open.

        `stuck` is the plan that had nothing in it. One holder of a slot yields. Where none can,
        those who wait and kept their heads lose them, newest first, until there is room. If not
        even that helps, the draft names nobody.
        """
        state, blocks, draft = self._state, self._blocks, Draft()
        shortage = blocks.shortage(stuck)
        victim = choose_victim(
            blocks.holders(), self._config, state.policy.rank, state.decodes.computed_tokens
        )
        if victim is not None:
            blocks.retract(draft, victim, shortage)
            return draft
        while state.pool.num_allocatable < shortage or not draft.victims:
            tail_holder = blocks.newest_tail_holder(draft)
            if tail_holder is None:
                break
            blocks.retract(draft, tail_holder, shortage)
        return draft

    def _prefill_share(self) -> int:
        """Give the tokens of the step that the decodes must leave to prompts.

        After somebody yielded out of a stall the decodes go first: the blocks were freed for them.
        """
        config, state = self._config, self._state
        wanted = config.min_prefill_tokens or config.prefill_aging_steps
        if not wanted or state.num_deferred_calls or not (state.prefilling or state.num_waiting):
            return 0
        share = self._prefills.usable_share(config.min_prefill_tokens)
        if config.prefill_aging_steps:
            share = max(share, self._prefills.aged_share())
        return share
