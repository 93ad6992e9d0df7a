"""Serves /v1/autoscale."""

from fastapi import APIRouter

from api.autoscale.schemas import ModelScaling, ScalingReport
from api.dependencies import DEPLOYMENT, DeploymentDependency
from api.errors import documented
from worker.store.watching import scaling

router = APIRouter(prefix="/v1/autoscale", tags=["operations"])


@router.get(
    "",
    dependencies=[DEPLOYMENT],
    responses=documented(401, 403, 429, 503),
    summary="How many workers are wanted?",
)
def get_wanted_workers(services: DeploymentDependency) -> ScalingReport:
    """Return the wanted number of gpu workers of each model, as the dispatcher last decided.

    The list is empty unless `HEADRACE_MAX_WORKERS` is set.
    """
    with services.store.transaction() as session:
        decisions = scaling.published(session)
    return ScalingReport(data=[ModelScaling.of(one) for one in decisions])
