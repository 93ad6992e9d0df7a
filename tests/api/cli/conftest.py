import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from api.dependencies import open_services
from api.files.__main__ import run
from api.main import create_app
from tests.fixtures.deployment import free_port
from tests.fixtures.shell import Shell
from worker.settings import Settings
from worker.store.database.session import Store


@pytest.fixture
def shell(
    store: Store,  # noqa: ARG001 - empties the tables
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shell]:
    port = free_port()
    app = create_app(config.model_copy(update={"auth": "keys"}))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Shell(f"http://127.0.0.1:{port}", monkeypatch)
    server.should_exit = True
    thread.join()


@pytest.fixture
def files(shell: Shell, config: Settings) -> Iterator[None]:  # noqa: ARG001 - after the tables were emptied
    """The files process."""
    services, stopping = open_services(config), threading.Event()
    thread = threading.Thread(target=run, args=(services, stopping))
    thread.start()
    yield
    stopping.set()
    thread.join()
    services.store.close()
