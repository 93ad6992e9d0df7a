"""compose.yaml as it runs: `make compose-test` builds its images and brings all of it up with podman.

The tests run in their order, on one deployment.
"""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.docker.compose_file import COMPOSE_MODELS, DOCKER, REQUIRED, load, merge
from tests.docker.customer import PROMPTS, Customer
from tests.docker.podman import (
    Compose,
    build_next,
    inspect,
    is_next,
    podman,
    remove_next,
    subnet_and_gateway,
)
from tests.fixtures.deployment import free_port
from tests.fixtures.receiver import receiver
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.up import ROOT, read_procfile
from worker.webhooks.sealing import new_key

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here"),
]

# Images of the same interface, from Debian's packages.
STORES = {"postgres:18": "headrace-test-postgres", "redis:8": "headrace-test-redis"}
PROCESSES = [name for name in read_procfile(ROOT / "Procfile") if name != "release"]


@dataclass(frozen=True, slots=True)
class Service:
    """The containers, what they are told, and a customer."""

    compose: Compose
    variables: dict[str, str]
    customer: Customer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    project, port = f"headrace-test-{uuid4().hex[:8]}", free_port()
    compose = Compose(load(), DOCKER, project, tmp_path_factory.mktemp("compose"), dict(STORES))
    compose.create_network()
    subnet, gateway = subnet_and_gateway(compose.network)
    variables = {
        "PORT": str(port),
        "FLOWER_PORT": str(free_port()),
        "HEADRACE_SECRET_KEY": new_key(),
        "HEADRACE_WEBHOOK_ALLOWED_NETWORKS": subnet,
        "HEADRACE_THREADS": "1",
        "HEADRACE_DRAIN_SECONDS": "2",  # short, so that work is handed back
    }
    compose.document = load(**variables)
    try:
        compose.up()  # the gateway's address is there with the first container
        key = compose.execute("web", "headrace", "keys", "create", "first")
        with receiver(host=gateway) as hook:
            address = f"http://127.0.0.1:{port}"
            customer = Customer(lambda: address, key, hook, REQUIRED["HEADRACE_WEBHOOK_SECRET"])
            yield Service(compose, variables, customer)
    finally:
        compose.down()
        remove_next()


def test_everything_comes_up(service: Service) -> None:
    """What no reading of the files shows: that they build, start, and that their health checks pass."""
    assert service.customer.call("GET", "/ready").json()["status"] == "ready"
    for name in service.compose.services:
        state = inspect(service.compose.container(name))["State"]
        assert state["Status"] == ("exited" if name == "release" else "running"), name
    for name in PROCESSES:
        assert service.compose.execute(name, "id", "-u") == "10001"
        assert int(service.compose.execute(name, "awk", "/^CapEff/ {print $2}", "/proc/self/status"), 16) == 0


def test_a_health_check_fails_without_the_database(service: Service) -> None:
    """A check that always says yes is no check."""
    podman("pause", service.compose.container("postgres"))
    try:
        assert not service.compose.is_healthy("dispatcher")
    finally:
        podman("unpause", service.compose.container("postgres"))
    service.compose.wait_until_healthy()


def test_a_batch_runs_and_its_webhook_is_signed(service: Service) -> None:
    service.customer.submit(PROMPTS * 8, max_tokens=16)
    service.customer.check_everything()


def test_a_file_goes_in_and_another_comes_out(service: Service) -> None:
    """web and files share a volume, which neither owns as root."""
    service.customer.run_file()


def test_a_kill_stops_nothing(service: Service) -> None:
    """Docker starts a container again when its process has died; nothing that was accepted is lost."""
    for name in (*PROCESSES, "redis", "postgres"):
        batch = service.customer.submit(PROMPTS * 80, max_tokens=48, ignore_eos=True)
        service.customer.wait_for_progress(batch)
        service.compose.crash(name)
        service.customer.wait_for(batch)
    service.compose.wait_until_healthy()
    service.customer.check_everything()


def test_an_upgrade_loses_nothing(service: Service) -> None:
    """One service after another gets the new image, while a customer goes on submitting."""
    compose, customer = service.compose, service.customer
    next_images = build_next()
    stopping = threading.Event()
    submitting = threading.Thread(target=customer.submit_until, args=(stopping,))
    before = len(customer.batches)
    submitting.start()
    try:
        batch = customer.submit(PROMPTS * 80, max_tokens=48, ignore_eos=True)
        customer.wait_for_progress(batch)
        compose.images |= next_images
        for name in ("release", *PROCESSES):
            compose.replace(name)
            if name != "release":
                compose.wait_until_healthy([name])
    finally:
        stopping.set()
        submitting.join()
    assert len(customer.batches) > before + 1
    for name in PROCESSES:
        assert is_next(compose.container(name))
    customer.check_everything()


def test_a_stop_is_orderly_and_keeps_everything(service: Service) -> None:
    """A process that must be killed gives nothing back; a volume that is lost takes all batches with it."""
    compose, customer = service.compose, service.customer
    assert {name: compose.stop(name) for name in PROCESSES} == dict.fromkeys(PROCESSES, 0)
    for name in ("redis", "postgres"):
        compose.stop(name)
    for name in compose.services:
        podman("rm", compose.container(name))
    compose.up()
    customer.check_everything()


def test_one_worker_serves_two_models(service: Service, tmp_path: Path) -> None:
    """compose.models.yaml and its profile: each model has an API, and its batches run in its turn."""
    compose, first = service.compose, service.customer
    directory = write_tiny_llama(tmp_path / "second")
    for path, mode in (
        (tmp_path, 0o755),
        (directory, 0o755),
        *((file, 0o644) for file in directory.iterdir()),
    ):
        path.chmod(mode)
    variables = {
        "HEADRACE_MODELS": "/app/models/demo,/models/second",
        "SECOND_MODEL": "/models/second",
        "SECOND_PORT": str(free_port()),
    }
    document = merge(load(**service.variables, **variables), load(COMPOSE_MODELS, **variables))
    for each in document["services"].values():
        each["volumes"] = [volume.replace("../models:", f"{tmp_path}:") for volume in each.get("volumes", [])]
    compose.document, compose.profiles = document, {"models"}
    compose.replace("gpu")
    for name in ("web-second", "files-second"):
        compose.start(name)
    compose.wait_until_healthy(["gpu", "web-second", "files-second"])
    address = f"http://127.0.0.1:{variables['SECOND_PORT']}"
    second = Customer(lambda: address, first.key, first.hook, first.secret)
    for customer in (second, first, second):
        batch = customer.submit([f"prompt {number}" for number in range(8)], max_tokens=8)
        customer.wait_for(batch)
    second.check_everything()
    assert compose.stop("gpu") == 0
