"""compose.yaml as it runs: `make compose-test` builds its images and brings all of it up with podman.

The tests run in their order, on one deployment.
"""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.docker.compose_file import DOCKER, REQUIRED, load
from tests.docker.customer import PROMPTS, Customer
from tests.docker.podman import Compose, inspect, podman, subnet_and_gateway
from tests.fixtures.deployment import free_port
from tests.fixtures.receiver import receiver
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
    """The containers, and a customer."""

    compose: Compose
    customer: Customer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    project, port = f"headrace-test-{uuid4().hex[:8]}", free_port()
    compose = Compose(load(), DOCKER, project, tmp_path_factory.mktemp("compose"), dict(STORES))
    compose.create_network()
    subnet, gateway = subnet_and_gateway(compose.network)
    compose.document = load(
        PORT=str(port),
        FLOWER_PORT=str(free_port()),
        HEADRACE_SECRET_KEY=new_key(),
        HEADRACE_WEBHOOK_ALLOWED_NETWORKS=subnet,
        HEADRACE_THREADS="1",
        HEADRACE_DRAIN_SECONDS="2",  # short, so that work is handed back
    )
    try:
        compose.up()  # the gateway's address is there with the first container
        key = compose.execute("web", "headrace", "keys", "create", "first")
        with receiver(host=gateway) as hook:
            address = f"http://127.0.0.1:{port}"
            yield Service(compose, Customer(lambda: address, key, hook, REQUIRED["HEADRACE_WEBHOOK_SECRET"]))
    finally:
        compose.down()


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
    next_images = {}
    for image in ("headrace-api", "headrace-worker"):
        text = f"FROM {image}\nLABEL release=next\n"
        podman("build", "--tag", f"{image}:next", "-", text=text)
        next_images[image] = f"{image}:next"
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
        for image in next_images.values():
            podman("untag", image, check=False)
    assert len(customer.batches) > before + 1
    for name in PROCESSES:
        assert inspect(compose.container(name))["Config"]["Labels"]["release"] == "next"
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
