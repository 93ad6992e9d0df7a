"""What routes are given: the store, the broker, the checkpoint, the settings."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Header
from fastapi import Request as HttpRequest

from api.blobs.choice import blob_store
from api.blobs.store import BlobStore
from api.checkpoint import Checkpoint
from worker.queue.broker import Broker
from worker.settings import Settings
from worker.store.session import Store


@dataclass(frozen=True, slots=True)
class Services:
    """What the application holds for its whole life."""

    settings: Settings
    store: Store
    broker: Broker
    checkpoint: Checkpoint
    blobs: BlobStore

    @property
    def spool(self) -> Path:
        """Where files are while they arrive."""
        return self.settings.data_dir / "incoming"


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's key, with the SHA-256 of the body it came with."""

    key: str
    fingerprint: str


def open_services(config: Settings) -> Services:
    """Return what routes and the files process are given; raises CheckpointError."""
    return Services(
        settings=config,
        store=Store(config.database_url),
        broker=Broker(config.redis_url),
        checkpoint=Checkpoint.load(config.model),
        blobs=blob_store(config),
    )


def _services(http_request: HttpRequest) -> Services:
    services: Services = http_request.app.state.services
    return services


async def _idempotency_key(
    http_request: HttpRequest,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="With the same key a retry makes no second batch. Kept for 48 hours.",
        ),
    ] = None,
) -> IdempotencyKey | None:
    if idempotency_key is None:
        return None
    return IdempotencyKey(idempotency_key, hashlib.sha256(await http_request.body()).hexdigest())


ServicesDependency = Annotated[Services, Depends(_services)]
IdempotencyDependency = Annotated[IdempotencyKey | None, Depends(_idempotency_key)]
