"""Serves the API on HOST and PORT until SIGTERM: `python -m api`."""

import gc
import resource
import signal
import sys

import uvicorn

from api.guards.slow_clients import ImpatientProtocol
from api.inputs.checkpoint import ModelDirectoryError
from api.main import create_app
from worker.settings import refuse, settings
from worker.telemetry import configure_logging

# Longer than clients and proxies keep an idle connection (httpx 5 s, nginx 60 s, Go 90 s): it is
# the client that ends it, so no request is sent into a connection that the API is closing.
IDLE_SECONDS = 120

if __name__ == "__main__":
    config = settings()
    configure_logging(config.log_level, config.log_format)
    try:
        app = create_app(config)
    except ModelDirectoryError as error:
        refuse(f"HEADRACE_MODEL: {error}")
    # What imports made stays: a full collection, which stops every answer, took 0.18 s to look at it again.
    gc.freeze()
    # Each connection is an open file. If the limit is still reached, the log says so.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # uvicorn raises the SIGTERM that has stopped it once more; an orderly stop is a success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        http=ImpatientProtocol,
        server_header=False,
        log_config=None,
        access_log=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=5,
    )
