"""Serves POST /v1/batch/estimate and POST /v1/batches/estimate."""

from fastapi import APIRouter

from api.batches.schemas import BatchSubmission
from api.dependencies import SUBMIT, ServicesDependency
from api.errors import OPENAI_STATUSES, documented
from api.estimates import service
from api.estimates.schemas import Estimate, LinesToEstimate
from api.guards.large_bodies import OnceRoute

router = APIRouter(prefix="/v1/batch", tags=["batches"], route_class=OnceRoute)
lines_router = APIRouter(
    prefix="/v1/batches", tags=["batches"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES]
)


@router.post(
    "/estimate",
    responses=documented(400, 401, 403, 413, 422, 429, 503),
    summary="What would a batch take?",
    dependencies=[SUBMIT],
)
def estimate_batch(submission: BatchSubmission, services: ServicesDependency) -> Estimate:
    """Check and tokenize a batch as if submitted; return its tokens, time and cost; store nothing."""
    return service.estimate(services, submission)


@lines_router.post(
    "/estimate",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
    summary="What would a batch of a file take?",
    dependencies=[SUBMIT],
)
def estimate_lines(given: LinesToEstimate, services: ServicesDependency) -> Estimate:
    """Check and tokenize the lines of a file; return its batch's tokens, time and cost; store nothing."""
    return service.estimate_lines(services, given)
