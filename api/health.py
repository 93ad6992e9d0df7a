"""Serves /health (this process runs), /ready (a batch sent now would be stored, queued and run), /version."""

import logging
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from pydantic import BaseModel
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from api.dependencies import READ, DeploymentDependency, Services
from api.errors import documented
from worker.contract.messages import GPU_QUEUE
from worker.store.watching import workers

logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

Check = Literal["ok", "failed"]


class Health(BaseModel):
    """The answer of a process that runs."""

    status: Literal["healthy"] = "healthy"


class Readiness(BaseModel):
    """The state of everything that a batch needs."""

    status: Literal["ready", "not ready"]
    database: Check
    broker: Check
    worker: Check


class Version(BaseModel):
    """The version of this server."""

    version: str


@router.get(
    "/version", dependencies=[READ], responses=documented(401, 403, 429), summary="Which version is this?"
)
def version(http_request: HttpRequest) -> Version:
    """Return the version of this server."""
    return Version(version=http_request.app.version)


@router.get("/health", summary="Is the API up?")
def health() -> Health:
    """Answer without asking Postgres, Redis or a worker."""
    return Health()


@router.get(
    "/ready",
    summary="Would a batch be run?",
    responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": Readiness, "description": "something is missing"}},
)
def ready(services: DeploymentDependency, response: Response) -> Readiness:
    """Check Postgres, Redis, and that a gpu worker of this model was seen within 15 seconds.

    Where workers come and go (`HEADRACE_MAX_WORKERS`), one need not be there. One that serves several models
    in turns (`HEADRACE_MODELS`) need not have loaded this one.
    """
    database, worker = _database_and_worker(services)
    broker = _broker(services)
    is_ready = database == broker == worker == "ok"
    if not is_ready:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    status: Literal["ready", "not ready"] = "ready" if is_ready else "not ready"
    return Readiness(status=status, database=database, broker=broker, worker=worker)


def _database_and_worker(services: Services) -> tuple[Check, Check]:
    try:
        with services.store.transaction() as session:
            model = services.checkpoint.model.fingerprint
            is_scaled = services.settings.max_workers is not None
            is_there = is_scaled or workers.slots(session, GPU_QUEUE, model=model) > 0
            is_served = is_there or workers.may_load(session, model)
            return "ok", "ok" if is_served else "failed"
    except SQLAlchemyError as error:
        logger.warning("not ready: %s", str(error).splitlines()[0])
        return "failed", "failed"


def _broker(services: Services) -> Check:
    try:
        services.broker.ping()
    except RedisError as error:
        logger.warning("not ready: %s", error)
        return "failed"
    return "ok"
