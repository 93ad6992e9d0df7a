"""Whether the response cache a submission asks for is there."""

from collections.abc import Iterator

from api.batches.schemas import BatchSubmission
from api.dependencies import Services
from api.errors import InvalidInputError
from worker.store import response_cache


def check_cache(services: Services, submission: BatchSubmission) -> None:
    """Refuse a semantic cache where there is none.

    Raises:
        InvalidInputError: this Postgres has no pgvector.

    """
    param = next(_semantic(services, submission), None)
    if param is None:
        return
    with services.store.transaction() as session:
        if response_cache.has_vectors(session):
            return
    raise InvalidInputError(
        f"{param}: the semantic cache needs pgvector, which this Postgres does not have: install it there and"
        " run CREATE EXTENSION vector, or ask for `exact`",
        param=param,
        code="semantic_cache_unavailable",
    )


def _semantic(services: Services, submission: BatchSubmission) -> Iterator[str]:
    if (submission.cache or services.settings.cache) == "semantic":
        yield "cache"
    for i, request in enumerate(submission.requests or []):
        if request.cache == "semantic":
            yield f"requests[{i}].cache"
