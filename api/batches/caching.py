"""Chooses a submission's response cache: the one asked for, if it exists and the tenant may use it."""

from sqlalchemy.orm import Session

from api.batches.schemas import BatchSubmission
from api.dependencies import Services
from api.errors import InvalidInputError, PermissionDeniedError
from worker.store.cache import response_cache
from worker.store.tenants import tenants
from worker.values.caching import CacheMode


def choose_cache(
    services: Services, session: Session, asked: str | None, *, param: str = "cache"
) -> CacheMode:
    """Return the cache mode that was asked for, or the deployment's default.

    If `semantic` is only the default, a tenant without that right, or a Postgres without pgvector, gets
    `exact`.

    Raises:
        PermissionDeniedError: the tenant may not use the semantic cache.
        InvalidInputError: this Postgres has no pgvector.

    """
    mode = CacheMode(asked or services.settings.cache)
    if mode is not CacheMode.SEMANTIC:
        return mode
    is_allowed, is_there = tenants.may_use_semantic_cache(session), response_cache.has_vectors(session)
    if is_allowed and is_there:
        return mode
    if asked is None:
        return CacheMode.EXACT
    if not is_allowed:
        raise PermissionDeniedError(
            f"{param}: this tenant may not use the semantic cache, which may answer with that of another"
            " prompt. Use `exact`, or ask the operator for `headrace tenants set NAME --semantic-cache`.",
            param=param,
            code="semantic_cache_not_allowed",
        )
    raise InvalidInputError(
        f"{param}: the semantic cache needs pgvector, which this Postgres does not have. Use `exact`, or ask"
        " the operator to install pgvector and run CREATE EXTENSION vector.",
        param=param,
        code="semantic_cache_unavailable",
    )


def default_cache(services: Services) -> CacheMode:
    """Return the cache mode of work that names none."""
    mode = CacheMode(services.settings.cache)
    if mode is not CacheMode.SEMANTIC:
        return mode
    with services.store.transaction() as session:
        return choose_cache(services, session, None)


def batch_cache(services: Services, submission: BatchSubmission) -> CacheMode:
    """Return a batch's cache mode after checking its requests' modes; raises as `choose_cache` does."""
    mode = CacheMode(submission.cache or services.settings.cache)
    wanted = [i for i, request in enumerate(submission.requests or []) if request.cache == "semantic"]
    if mode is not CacheMode.SEMANTIC and not wanted:
        return mode
    with services.store.transaction() as session:
        for i in wanted[:1]:  # the right is the tenant's, so one check is enough
            choose_cache(services, session, CacheMode.SEMANTIC, param=f"requests[{i}].cache")
        return choose_cache(services, session, submission.cache)
