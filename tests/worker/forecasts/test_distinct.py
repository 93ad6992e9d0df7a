from dataclasses import replace

from worker.contract.models import Model
from worker.forecasts.work import distinct
from worker.store.batches.batches import NewBatch
from worker.store.requests.placement import digest_of
from worker.store.requests.requests import NewRequest
from worker.values.results import RequestError
from worker.values.sampling import SamplingParams

OWN, OTHER = Model("own", "1", ""), Model("other", "2", "")
GREEDY = SamplingParams(max_tokens=8, temperature=0)
FIRST = NewRequest(prompt="a", max_tokens=8)
OF_OTHER = replace(FIRST, model=OTHER)


def run(*requests: NewRequest, params: SamplingParams = GREEDY) -> list[NewRequest]:
    batch = NewBatch(params, requests, model=OWN)
    return distinct(batch, [digest_of(request, params) for request in requests])


def test_of_identical_requests_of_one_model_the_first_runs() -> None:
    named = replace(FIRST, model=OWN, custom_id="named")
    different = replace(FIRST, prompt="b")
    assert run(FIRST, OF_OTHER, named, different, OF_OTHER) == [FIRST, OF_OTHER, different]


def test_requests_whose_answers_may_differ_all_run() -> None:
    assert run(FIRST, FIRST, params=replace(GREEDY, temperature=1.0)) == [FIRST, FIRST]


def test_wrong_requests_do_not_run() -> None:
    wrong = replace(FIRST, error=RequestError("wrong", "no"))
    assert run(wrong, FIRST) == [FIRST]
