"""Which waiting Sequence is given room next, by policies with a name. Knows no tensors."""

from worker.engine.admission.fifo import Fifo
from worker.engine.admission.length_aware import LengthAware
from worker.engine.admission.policy import AdmissionPolicy
from worker.engine.block_pool import BlockPool

POLICIES = ("fifo", "length-aware")


def make_policy(name: str, pool: BlockPool, *, block_size: int, max_model_len: int) -> AdmissionPolicy:
    """Return the policy of this name; raises ValueError when there is none."""
    if name == "fifo":
        return Fifo(pool)
    if name == "length-aware":
        return LengthAware(pool, block_size=block_size, max_model_len=max_model_len)
    raise ValueError(f"admission {name!r} is none of {', '.join(POLICIES)}")
