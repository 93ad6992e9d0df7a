"""Serves POST /v1/batch/estimate."""

from fastapi import APIRouter

from api.batches.schemas import BatchSubmission
from api.dependencies import SUBMIT, ServicesDependency
from api.errors import documented
from api.estimates import service
from api.estimates.schemas import Estimate
from api.guards.large_bodies import OnceRoute

router = APIRouter(prefix="/v1/batch", tags=["batches"], route_class=OnceRoute)


@router.post(
    "/estimate",
    responses=documented(400, 401, 403, 413, 422, 429, 503),
    summary="What would a batch take?",
    dependencies=[SUBMIT],
)
def estimate_batch(submission: BatchSubmission, services: ServicesDependency) -> Estimate:
    """Check and tokenize a batch as if submitted; return its tokens, time and cost; store nothing."""
    return service.estimate(services, submission)
