from sqlalchemy import select

from worker.contract.models import Model
from worker.store.batches import batches, placing
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.store.rows.shards import ShardRow
from worker.values.sampling import SamplingParams

PARAMS = SamplingParams(max_tokens=8)
MODELS = Model("own", "1", ""), Model("other", "2", "")


def requests_of_both(count: int) -> list[NewRequest]:
    return [NewRequest(f"{i}", max_tokens=8, model=model) for model in MODELS for i in range(count)]


def test_later_shards_of_each_model_follow_its_own(store: Store) -> None:
    """Also if they have another size: the places of a model's shards count what it has had."""
    with store.transaction() as session:
        new = NewBatch(PARAMS, requests_of_both(4), model=MODELS[0])
        batch_id = batches.submit(session, new, shard_size=2)
        placing.add_shards(
            session,
            batch_id,
            requests_of_both(3),
            batch_params=PARAMS,
            shard_size=3,
            priority=0,
            expires_at=None,
            model_fingerprint=MODELS[0].fingerprint,
            first_position=8,
        )
        found = session.execute(
            select(ShardRow.model_fingerprint, ShardRow.position, ShardRow.num_requests).order_by(
                ShardRow.model_fingerprint, ShardRow.position
            )
        )
        assert [tuple(row) for row in found] == [
            (model, *shard) for model in ("1", "2") for shard in ((0, 2), (1, 2), (2, 3))
        ]
