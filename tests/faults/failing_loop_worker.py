"""A gpu worker whose lease keeper fails as soon as it holds a shard, for the fault tests."""

from worker.runs.lease_keeper import LeaseKeeper
from worker.tasks.run_shard import app, run_shard

__all__ = ["app", "run_shard"]

_renew = LeaseKeeper._renew


def _fail(keeper: LeaseKeeper) -> None:
    if keeper._held:
        raise LookupError("a mistake of the program")
    _renew(keeper)


LeaseKeeper._renew = _fail  # type: ignore[method-assign]
