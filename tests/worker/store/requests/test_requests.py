from tests.fixtures.batches import held
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.values.requests import EmbeddingParams, ScoringParams
from worker.values.sampling import SamplingParams


def test_each_request_comes_back_with_its_own_parameters(store: Store) -> None:
    shared = SamplingParams(max_tokens=10, temperature=0.3)
    warm = SamplingParams(max_tokens=10, temperature=1.0, stop=("end",), logit_bias=((3, -1.5),))
    given = [
        *(None, warm, None, warm, warm, SamplingParams(max_tokens=10, temperature=1.5), warm),
        *(EmbeddingParams(dimensions=4), ScoringParams((" yes", " no")), EmbeddingParams(), None),
    ]
    new = [NewRequest(prompt=str(i), max_tokens=10, params=params) for i, params in enumerate(given)]
    with store.transaction() as session:
        batches.submit(session, NewBatch(params=shared, requests=new), shard_size=64)
    found = held(store, 1).requests
    assert [request.prompts for request in found] == [(str(i),) for i in range(len(given))]
    assert [request.params for request in found] == [params or shared for params in given]
