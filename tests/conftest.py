"""Every test has a real Postgres and a real Redis, started once for each process that runs tests."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.fixtures.spread import ByFile, rank

# Triton is built for Linux only.
collect_ignore_glob = [] if find_spec("triton") else ["*/test_gpu.py"]

# Generated inputs are the same in every run, and a busy machine fails none; `make fuzz` takes others.
settings.register_profile("fuzz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("fuzz"), derandomize=True)
settings.load_profile("tests")

_stack = ExitStack()

SESSIONS = 20  # of the pooler for each database, one for each thread that a test has in a transaction


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the engine's tests run on another device, and all tests through a pooler."""
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="where test engines run")
    parser.addoption("--pooler", action="store_true", help="reach Postgres through PgBouncer")


def start_services(config: pytest.Config) -> dict[str, str]:
    """Start a Postgres and a Redis that end with this process; return where they are."""
    from tests.fixtures.pooler import pooler
    from worker.embedded import services

    directory = _stack.enter_context(
        tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
    )
    # Never a developer's own servers: the tests empty their tables.
    started = _stack.enter_context(services({"HEADRACE_DATA_DIR": directory}))
    with psycopg.connect(started["DATABASE_URL"], autocommit=True) as connection:
        # No test outlives a power cut; a process that is killed loses nothing by it.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    if config.getoption("--pooler"):
        direct = started["DATABASE_URL"]
        running = _stack.enter_context(pooler(direct, sessions=SESSIONS))
        started |= {"DATABASE_URL": running.url, "DATABASE_DIRECT_URL": direct}
    return started


def pytest_configure_node(node: WorkerController) -> None:
    """Start the services of a process that will run tests: this one outlives it, whatever becomes of it."""
    node.workerinput["services"] = start_services(node.config)


def pytest_configure(config: pytest.Config) -> None:
    """Have services before any module of ours reads the environment."""
    given = getattr(config, "workerinput", None)
    if given is None and config.getoption("dist") != "no":
        return  # it only hands out tests
    # Work this small is slower on more threads, and far slower when they share cores with others.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("DATABASE_DIRECT_URL", None)
    os.environ.update(given["services"] if given else start_services(config))
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        if name not in {
            "HEADRACE_AUTH",
            "HEADRACE_DATA_DIR",
            "HEADRACE_SECRET_KEY",
            "HEADRACE_WEBHOOK_SECRET",
        }:
            del os.environ[name]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests out by file."""
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes long. Without a GPU, skip what needs one; what interprets kernels is slow."""
    items.sort(key=lambda item: rank(item.nodeid))
    for_gpus = [item for item in items if item.get_closest_marker("gpu")]
    of_kernels = [item for item in items if item.path.name in {"test_gpu.py", "test_gpu_quantized.py"}]
    if for_gpus or of_kernels:
        import torch

        if torch.cuda.is_available():
            return
        for item in for_gpus:
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))
        for item in of_kernels:
            item.add_marker(pytest.mark.slow)


def pytest_unconfigure() -> None:
    """Stop the services."""
    _stack.close()


@pytest.fixture(scope="session")
def database_url() -> str:
    """The address of a migrated database."""
    from alembic import command
    from alembic.config import Config

    from worker.settings import settings as own_settings

    command.upgrade(Config(toml_file=str(Path(__file__).parent.parent / "pyproject.toml")), "head")
    return own_settings().database_url


@pytest.fixture
def store(database_url: str) -> Iterator["Store"]:  # noqa: F821 - imported late
    """An empty store."""
    from tests.fixtures.empty_tables import empty_tables
    from worker.settings import settings as own_settings
    from worker.store.database.session import Store

    # A busy machine may stop a test for long.
    store = Store(database_url, has_pooler=own_settings().has_pooler, idle_seconds=60)
    with store.transaction() as session:
        empty_tables(session)
    yield store
    store.close()
