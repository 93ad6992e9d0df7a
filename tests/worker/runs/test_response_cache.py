from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tests.fixtures.batches import LEASE, held, result
from worker.contract.states import BatchStatus
from worker.quality.expected import Expected, Match
from worker.runs.response_cache import Lookup, ResponseCache
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.cache import response_cache
from worker.store.counts import usage
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.requests.requests import NewRequest, ShardRequest
from worker.store.requests.result_views import ResultView
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress
from worker.values.caching import CacheMode
from worker.values.outcomes import Outcome
from worker.values.results import NewResult, RequestError
from worker.values.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=10, temperature=0)
VECTORS = {
    "cat": (1.0, 0.0),
    "cats": (0.96, 0.28),
    "dog": (0.0, 1.0),
    "He says yes": (0.28, 0.96),
    "He says no": (0.28, 0.96),
}


class Bench:
    """Runs batches of one shard as a worker does, with an engine that answers `out <prompt>`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cache = ResponseCache(store, "model a", timedelta(hours=1), self._embed, similarity=0.95)
        self.num_shards = 0
        self.answers = "out {}"
        self.may_use_semantic_cache = True

    def _embed(self, asked: Sequence[ShardRequest]) -> list[Sequence[float]]:
        return [VECTORS.get(request.prompts[0], ()) for request in asked]

    def claim(
        self,
        *prompts: str,
        params: SamplingParams = GREEDY,
        own: dict[str, object] | None = None,
        **batch: object,
    ) -> tuple[Claim, Lookup]:
        new = NewBatch(
            params=params,
            requests=[
                NewRequest(prompt=prompt, max_tokens=10, num_prompt_tokens=3, **own or {})  # type: ignore[arg-type]
                for prompt in prompts
            ],
            **batch,  # type: ignore[arg-type]
        )
        with self.store.transaction() as session:
            batches.submit(session, new, shard_size=100)
        self.num_shards += 1
        claimed = held(self.store, self.num_shards)
        claimed = replace(claimed, may_use_semantic_cache=self.may_use_semantic_cache)
        return claimed, self.cache.look_up(claimed)

    def run(self, *prompts: str, **batch: object) -> tuple[BatchView, list[ResultView]]:
        """Run a batch to its end; return it and its results by position."""
        claimed, lookup = self.claim(*prompts, **batch)  # type: ignore[arg-type]
        answered = {answer.request_id for answer in lookup.answers}
        computed = [
            lookup.checked(
                replace(
                    result(one.id, output=self.answers.format(one.prompts[0])),
                    num_copies=one.num_copies,
                    keep=lookup.entries.get(one.id),
                )
            )
            for one in claimed.requests
            if one.id not in answered
        ]
        return self.save(claimed, [*lookup.answers, *computed])

    def save(self, claimed: Claim, results: list[NewResult]) -> tuple[BatchView, list[ResultView]]:
        with self.store.transaction() as session:
            shards.save(session, [Progress(claimed, results, 0, is_last=True)], lease=LEASE)
        with self.store.transaction() as session:
            view = batch_views.get(session, claimed.batch_id)
            found = result_views.page(session, claimed.batch_id, after=0, limit=100)
        assert view is not None
        assert view.status is BatchStatus.COMPLETED
        return view, sorted(found, key=lambda one: one.position)


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


def sources(found: list[ResultView]) -> list[str]:
    return [str(one.source) for one in found]


def test_the_same_request_is_answered_from_the_cache(bench: Bench) -> None:
    _, first = bench.run("cat", "dog", cache=CacheMode.EXACT)
    view, again = bench.run("dog", "fish", "dog", cache=CacheMode.EXACT)
    assert sources(first) == ["engine", "engine"]
    assert sources(again) == ["exact_cache", "engine", "exact_cache"]
    assert [one.output for one in again] == ["out dog", "out fish", "out dog"]
    assert (view.num_completed, view.num_cache_hits, view.num_deduplicated) == (3, 2, 0)
    assert (again[0].num_prompt_tokens, again[0].num_cached_tokens, again[0].num_output_tokens) == (3, 3, 7)
    assert (view.input_tokens, view.cached_tokens, view.output_tokens) == (9, 7, 21)


def test_nothing_is_kept_or_asked_unless_the_batch_says_so(bench: Bench) -> None:
    bench.run("cat")
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["engine"]
    assert sources(bench.run("cat")[1]) == ["engine"]
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["exact_cache"]


@pytest.mark.parametrize(
    "params",
    [
        replace(GREEDY, max_tokens=11, stop=("x",)),
        replace(GREEDY, seed=4),
        SamplingParams(max_tokens=10, temperature=0.7),
    ],
)
def test_other_sampling_is_another_request(bench: Bench, params: SamplingParams) -> None:
    bench.run("cat", cache=CacheMode.EXACT)
    assert sources(bench.run("cat", cache=CacheMode.EXACT, params=params)[1]) == ["engine"]


def test_another_model_has_answers_of_its_own(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.EXACT)
    bench.cache = replace(bench.cache, model_fingerprint="model b")
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["engine"]


def test_answers_expire(bench: Bench, store: Store) -> None:
    bench.run("cat", cache=CacheMode.EXACT)
    with store.transaction() as session:
        session.execute(text("UPDATE cached_responses SET expires_at = now()"))
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["engine"]
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["exact_cache"], "it was kept anew"
    with store.transaction() as session:
        assert response_cache.drop_expired(session) == 0
        session.execute(text("UPDATE cached_responses SET expires_at = now()"))
        assert response_cache.drop_expired(session) == 1
        assert response_cache.size(session).num_entries == 0


def test_a_failure_is_not_kept(bench: Bench, store: Store) -> None:
    claimed, lookup = bench.claim("cat", cache=CacheMode.EXACT)
    failed = replace(
        result(claimed.requests[0].id, outcome=Outcome.FAILED), error=RequestError("generation_failed", "no")
    )
    bench.save(claimed, [failed])
    assert lookup.entries
    with store.transaction() as session:
        assert response_cache.size(session).num_entries == 0


def test_a_meaning_that_is_near_enough_shares_its_answer(bench: Bench) -> None:
    bench.run("cat", "dog", cache=CacheMode.SEMANTIC)
    view, found = bench.run("cats", "dog", cache=CacheMode.SEMANTIC)
    assert sources(found) == ["semantic_cache", "exact_cache"]
    assert (found[0].output, view.num_cache_hits) == ("out cat", 2)
    assert found[0].similarity == pytest.approx(0.96)
    assert found[1].similarity is None


def test_the_threshold_is_the_batchs_own(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    strict = bench.run("cats", cache=CacheMode.SEMANTIC, cache_similarity=0.97)
    assert sources(strict[1]) == ["engine"]


def test_a_tenant_whose_leave_was_taken_back_gets_exact_answers_only(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    bench.may_use_semantic_cache = False
    assert sources(bench.run("cats", "cat", cache=CacheMode.SEMANTIC)[1]) == ["engine", "exact_cache"]


def test_only_who_asks_for_it_gets_a_semantic_answer(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    assert sources(bench.run("cats", cache=CacheMode.EXACT)[1]) == ["engine"]
    other = bench.run("cats", cache=CacheMode.SEMANTIC, params=replace(GREEDY, stop=("x",)))
    assert sources(other[1]) == ["engine"], "the sampling must be the same"


def test_a_prompt_without_a_vector_is_run(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    assert sources(bench.run("fish", cache=CacheMode.SEMANTIC)[1]) == ["engine"]


def test_a_cache_that_is_away_has_no_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run("cat", cache=CacheMode.EXACT)

    def away(*_: object) -> dict[bytes, object]:
        raise OperationalError("find", None, Exception("the database is restarting"))

    monkeypatch.setattr(response_cache, "find", away)
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["engine"]


def test_clearing_forgets_everything(bench: Bench, store: Store) -> None:
    bench.run("cat", "dog", cache=CacheMode.SEMANTIC)
    with store.transaction() as session:
        found = response_cache.size(session)
        assert (found.num_entries, found.num_semantic) == (2, 2)
        assert found.num_bytes > 0
        assert response_cache.clear(session) == 2
    assert sources(bench.run("cat", cache=CacheMode.EXACT)[1]) == ["engine"]


def checks(bench: Bench) -> tuple[float, float]:
    with bench.store.transaction() as session:
        counted = usage.by_tenant(session)["default"]
    return counted.get("cache_checks", 0), counted.get("cache_checks_right", 0)


def test_what_differs_in_a_mark_shares_no_answer(bench: Bench) -> None:
    bench.run("He says yes", cache=CacheMode.SEMANTIC)
    assert sources(bench.run("He says no", cache=CacheMode.SEMANTIC)[1]) == ["engine"]


def test_embeddings_of_another_model_are_not_compared(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    bench.cache = replace(bench.cache, embedding_model="another")
    assert sources(bench.run("cats", cache=CacheMode.SEMANTIC)[1]) == ["engine"]
    assert sources(bench.run("cats", cache=CacheMode.SEMANTIC)[1]) == ["exact_cache"]


@pytest.mark.parametrize(("answers", "is_right"), [("Out  Cat", True), ("out {}", False)])
def test_a_hit_that_is_checked_is_run_and_compared(bench: Bench, answers: str, is_right: bool) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    bench.cache, bench.answers = replace(bench.cache, check_share=1.0), answers
    _, (found,) = bench.run("cats", cache=CacheMode.SEMANTIC)
    assert (found.source, found.output) == ("engine", answers.format("cats"))
    assert (found.similarity, found.hit_is_right) == (pytest.approx(0.96), is_right)
    assert checks(bench) == (1, is_right)


def test_what_is_expected_says_whether_a_hit_was_right(bench: Bench) -> None:
    bench.run("cat", cache=CacheMode.SEMANTIC)
    bench.cache = replace(bench.cache, check_share=1.0)
    own = {"expected": Expected(Match.REGEX, ".*cat")}
    assert bench.run("cats", cache=CacheMode.SEMANTIC, own=own)[1][0].hit_is_right is True


def test_the_shadow_mode_only_measures(bench: Bench) -> None:
    bench.may_use_semantic_cache = False
    bench.cache = replace(bench.cache, is_shadow=True)
    bench.run("cat", cache=CacheMode.EXACT)
    _, found = bench.run("cat", "cats", "dog", cache=CacheMode.EXACT)
    assert sources(found) == ["exact_cache", "engine", "engine"]
    assert [one.hit_is_right for one in found] == [None, False, None]
    assert checks(bench) == (1, 0)
    assert bench.run("cats")[1][0].hit_is_right is None, "the batch takes part in no cache"


def test_a_request_takes_no_answer_older_than_it_says(bench: Bench, store: Store) -> None:
    bench.run("cat", "dog", cache=CacheMode.SEMANTIC)
    with store.transaction() as session:
        session.execute(text("UPDATE cached_responses SET created_at = now() - interval '10 min'"))
    young, old = {"cache_ttl_seconds": 60.0}, {"cache_ttl_seconds": 3000.0}
    for own in (young, {**old, "own": young}):
        assert sources(bench.run("cats", cache=CacheMode.SEMANTIC, **own)[1]) == ["engine"]  # type: ignore[arg-type]
        with store.transaction() as session:
            session.execute(text("UPDATE cached_responses SET created_at = now() - interval '10 min'"))
    assert sources(bench.run("cat", cache=CacheMode.EXACT, **old)[1]) == ["exact_cache"]  # type: ignore[arg-type]
    assert sources(bench.run("cat", cache=CacheMode.EXACT, **young)[1]) == ["engine"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "kept"), [(60.0, 60), (7200.0, 3600), (None, 3600)])
def test_an_answer_is_kept_as_long_as_its_request_says(
    bench: Bench, store: Store, asked: float | None, kept: int
) -> None:
    bench.run("cat", cache=CacheMode.EXACT, cache_ttl_seconds=asked)
    with store.transaction() as session:
        lifetime = session.scalar(text("SELECT expires_at - created_at FROM cached_responses"))
    assert lifetime == timedelta(seconds=kept)


def test_an_answer_gains_its_embedding_later(bench: Bench, store: Store) -> None:
    bench.run("cat", cache=CacheMode.EXACT)
    with store.transaction() as session:
        session.execute(text("UPDATE cached_responses SET created_at = now() - interval '10 min'"))
    bench.run("cat", cache=CacheMode.SEMANTIC, cache_ttl_seconds=60.0)
    assert sources(bench.run("cats", cache=CacheMode.SEMANTIC)[1]) == ["semantic_cache"]
