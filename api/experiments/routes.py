"""Serves /v1/experiments: start, list, look at, promote and roll back."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.dependencies import (
    CONTROL_BATCH,
    READ,
    READ_BATCH,
    SUBMIT,
    CallerDependency,
    DeploymentDependency,
    Services,
    ServicesDependency,
    services_of_batch,
)
from api.errors import documented
from api.experiments import service
from api.experiments.schemas import ExperimentAnswer, ExperimentPage, ExperimentSubmission
from api.inputs.cursors import After
from api.inputs.schema import Text
from worker.store.experiments.experiments import batch_of

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

ExperimentId = Annotated[Text, Path(max_length=64, examples=["experiment_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"])]


async def services_of_experiment(
    experiment_id: ExperimentId, deployment: DeploymentDependency, caller: CallerDependency
) -> Services:
    """Return the services of its batch's tenant to an operator, and of the caller's own to others."""
    return await services_of_batch(batch_of(experiment_id), deployment, caller)


ExperimentDependency = Annotated[Services, Depends(services_of_experiment)]


@router.get(
    "",
    dependencies=[READ],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="List experiments",
)
def list_experiments(
    services: ServicesDependency, after: After = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> ExperimentPage:
    """Return experiments, the newest first."""
    return service.page(services, after=after, limit=limit)


@router.post(
    "",
    status_code=201,
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 413, 422, 429, 503),
    summary="Start an experiment on a running batch",
)
def create_experiment(
    submission: ExperimentSubmission, services: ServicesDependency, caller: CallerDependency
) -> ExperimentAnswer:
    """Have another model run a share of a batch's requests too, also of one that was made from a file.

    Those with a result take part as well. An experiment may also be asked for with a new batch.
    """
    return service.answer(services, service.create(services, submission, actor=caller.actor))


@router.get(
    "/{experiment_id}",
    dependencies=[READ_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Look at an experiment",
)
def get_experiment(experiment_id: ExperimentId, services: ExperimentDependency) -> ExperimentAnswer:
    """Return quality and speed of both models so far, and the verdict."""
    return service.answer(services, experiment_id)


@router.post(
    "/{experiment_id}/promote",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Have the other model run the rest",
)
def promote_experiment(
    experiment_id: ExperimentId, services: ExperimentDependency, caller: CallerDependency
) -> ExperimentAnswer:
    """Reassign the batch to the other model, and end the experiment. Results that are there stay."""
    service.promote(services, experiment_id, actor=caller.actor)
    return service.answer(services, experiment_id)


@router.post(
    "/{experiment_id}/rollback",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="End an experiment",
)
def roll_back_experiment(
    experiment_id: ExperimentId, services: ExperimentDependency, caller: CallerDependency
) -> ExperimentAnswer:
    """End an experiment. The batch goes on as if it had not been."""
    service.roll_back(services, experiment_id, actor=caller.actor)
    return service.answer(services, experiment_id)
