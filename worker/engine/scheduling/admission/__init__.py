"""Chooses the waiting Sequence to admit next: fair shares between groups, a named policy within each.

Knows no tensors.
"""

import time
from collections.abc import Callable

from worker.engine.requests.config import ADMISSIONS
from worker.engine.scheduling.admission.fair_shares import SAVED_TOKENS, FairShares
from worker.engine.scheduling.admission.fifo import Fifo
from worker.engine.scheduling.admission.length_aware import LengthAware
from worker.engine.scheduling.admission.memory_room import MemoryRoom
from worker.engine.scheduling.admission.own_order import OwnOrder
from worker.engine.scheduling.block_pool import BlockPool


def make_admission(
    name: str,
    pool: BlockPool,
    *,
    block_size: int,
    max_model_len: int,
    saved_tokens: float = SAVED_TOKENS,
    aging_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FairShares:
    """Return FairShares over queues of the named policy; raises ValueError for an unknown name.

    `aging_seconds` is that of OwnOrder.
    """
    if name == "fifo":
        return FairShares(
            lambda: OwnOrder(lambda: Fifo(pool), aging_seconds, clock), saved_tokens=saved_tokens
        )
    if name == "length-aware":
        room = MemoryRoom(pool, block_size=block_size, max_model_len=max_model_len)
        return FairShares(
            lambda: OwnOrder(lambda: LengthAware(room), aging_seconds, clock), saved_tokens=saved_tokens
        )
    raise ValueError(f"admission must be one of {', '.join(ADMISSIONS)}, not {name!r}")
