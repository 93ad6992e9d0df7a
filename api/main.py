"""Builds the application from its routes, errors and limits."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import error_handlers, health, openapi
from api.anthropic import batch_routes as message_batches
from api.anthropic import routes as anthropic
from api.audit import routes as audit
from api.autoscale import routes as autoscale
from api.batches import control_routes, progress_routes
from api.batches import routes as batches
from api.dashboard import routes as dashboard
from api.dependencies import open_services
from api.documentation import routes as documentation
from api.estimates import routes as estimates
from api.experiments import routes as experiments
from api.file_batches import routes as file_batches
from api.files import routes as files
from api.files.service import prepare
from api.generate import routes as generate
from api.guards.access_log import AccessLog, unexpected
from api.guards.large_bodies import GiveBackMemory
from api.guards.middleware import BodyLimit, SecurityHeaders
from api.guards.slow_clients import GoneClients, SlowBodies
from api.guards.strangers import StrangersBodies
from api.guards.traffic import CountTraffic
from api.keys import routes as keys
from api.metrics import routes as metrics
from api.openai import routes as openai
from api.responses import routes as responses
from api.tenants import routes as tenants
from api.tokenization import routes as tokenization
from api.uploads import routes as uploads
from api.usage import routes as usage
from api.webhooks import routes as webhooks
from worker.settings import Settings, settings

logger = logging.getLogger(__name__)

DESCRIPTION = """
Batch inference that loses nothing: a batch is durable before it is accepted, results can be read
while it runs, and a signed webhook says when it has ended.
"""

ROUTERS = (
    health.router,
    dashboard.router,
    documentation.router,
    generate.router,
    openai.router,
    tokenization.router,
    anthropic.router,
    message_batches.router,
    responses.router,
    estimates.router,
    estimates.lines_router,
    batches.router,
    files.router,
    uploads.router,
    file_batches.router,
    webhooks.router,
    audit.router,
    keys.router,
    tenants.router,
    usage.router,
    autoscale.router,
    control_routes.router,
    experiments.router,
    progress_routes.router,
)


def create_app(config: Settings | None = None) -> FastAPI:
    """Return the application. The checkpoint is read now, so that a wrong path fails at the start."""
    config = config or settings()
    services = open_services(config)
    for alias, name in config.model_aliases.items():
        if name not in {one.name for one in services.checkpoint.served}:
            logger.warning("HEADRACE_MODEL_ALIASES: %s is %s, which is not served here", alias, name)
    prepare(services)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await services.feeds.close()
        services.store.close()
        services.broker.close()

    # FastAPI's own pages load their scripts from elsewhere; api/documentation has ours.
    app = FastAPI(
        title="Headrace",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    error_handlers.install(app)
    app.exception_handler(Exception)(unexpected)
    if config.auth == "keys":
        app.add_middleware(StrangersBodies, store=services.store)
    app.add_middleware(SlowBodies)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(GiveBackMemory)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(GoneClients)
    metrics.install(app, services.store, config)
    app.add_middleware(CountTraffic, traffic=services.traffic)
    app.add_middleware(AccessLog)
    for router in ROUTERS:
        app.include_router(router)
    openapi.install(app)
    return app
