"""`python -m api`: serve on HOST and PORT until SIGTERM."""

import sys

import uvicorn

from api.checkpoint import CheckpointError
from api.main import create_app
from worker.settings import settings
from worker.telemetry import configure_logging

if __name__ == "__main__":
    config = settings()
    configure_logging(config.log_level, config.log_format)
    if config.auth == "off" and not config.listens_on_loopback:
        sys.exit(
            f"HEADRACE_AUTH=off is for loopback only, and HEADRACE_HOST is {config.host}: whoever reaches it "
            "could read and submit everything"
        )
    try:
        app = create_app(config)
    except CheckpointError as error:
        sys.exit(f"HEADRACE_MODEL cannot be served: {error}")
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
