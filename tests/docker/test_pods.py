"""docker/kubernetes as pods on several hosts: `make kubernetes-test`.

Postgres and Redis speak TLS only, files are in a bucket, and no two pods share a disk. The tests run in
their order, on one deployment.
"""

import base64
import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.docker.authority import write_certificates
from tests.docker.compose_file import REQUIRED
from tests.docker.customer import PROMPTS, Customer
from tests.docker.podman import IMAGES, build_next, is_next, podman, remove_next, subnet_and_gateway, succeeds
from tests.docker.pods import Cluster
from tests.docker.test_rendered_kubernetes import render, way_to_base
from tests.fixtures.deployment import eventually
from tests.fixtures.receiver import receiver
from worker.webhooks.sealing import new_key

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here"),
]

CA = "/etc/headrace/authorities/ca.crt"
PODS = {"web": 2, "gpu": 2, "callbacks": 1, "dispatcher": 2, "files": 1, "flower": 1}
OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}]
configMapGenerator:
  - name: headrace
    behavior: merge
    literals:
      - HEADRACE_DEVICE=cpu
      - HEADRACE_THREADS=1
      - HEADRACE_DRAIN_SECONDS=2
      - HEADRACE_BLOB_URL=s3://headrace
      - HEADRACE_WEBHOOK_ALLOWED_NETWORKS={subnet}
      - AWS_ENDPOINT_URL={endpoint}
      - AWS_REGION=us-east-1
      - AWS_ALLOW_HTTP=true
generatorOptions: {{disableNameSuffixHash: true}}
"""


@dataclass(frozen=True, slots=True)
class Service:
    """The pods, a customer, and the container of Postgres."""

    cluster: Cluster
    customer: Customer
    postgres: str

    def sql(self, query: str) -> list[str]:
        """Run a query as Postgres's own user; return its rows."""
        return podman(
            "exec",
            self.postgres,
            "psql",
            "-h",
            "/var/run/postgresql",
            "-U",
            "headrace",
            "-d",
            "headrace",
            "-Atc",
            query,
        ).splitlines()


def run_stores(network: str, names: dict[str, str], scratch: Path) -> str:
    """Run Postgres and Redis with TLS; return the certificate of their authority."""
    authority = write_certificates(scratch, *names)
    for server, name in names.items():
        image = f"headrace-test-{server}"
        user = podman("run", "--rm", "--entrypoint", "id", image, "-u", server)
        os.chown(scratch / f"{server}.key", int(user), -1)
        (scratch / f"{server}.key").chmod(0o600)
        key, certificate = f"/certificates/{server}.key", f"/certificates/{server}.crt"
        options = ["--detach", "--name", name, "--network", network, "--network-alias", server]
        options += ["--volume", f"{scratch}:/certificates:ro"]
        if server == "postgres":
            options += ["--env=POSTGRES_USER=headrace", "--env=POSTGRES_DB=headrace"]
            options += ["--env=POSTGRES_PASSWORD=postgres-password"]
            command = [
                "postgres",
                "-c",
                "ssl=on",
                "-c",
                f"ssl_cert_file={certificate}",
                "-c",
                f"ssl_key_file={key}",
            ]
        else:
            command = ["redis-server", "--port", "0", "--tls-port", "6379", "--tls-auth-clients", "no"]
            command += [
                "--tls-cert-file",
                certificate,
                "--tls-key-file",
                key,
                "--requirepass",
                "redis-password",
            ]
            command += ["--tls-ca-cert-dir", "/etc/ssl/certs", "--save", "", "--appendonly", "yes"]
        podman("run", *options, image, *command)
    ready = ["exec", names["postgres"], "pg_isready", "-h", "127.0.0.1", "-d", "headrace", "-U", "headrace"]
    eventually(lambda: succeeds(*ready), what="Postgres")
    return authority


def create_secret() -> None:
    """Make the Secret that docs/kubernetes.md asks for."""
    data = {
        "DATABASE_URL": f"postgresql://headrace:postgres-password@postgres:5432/headrace?sslmode=verify-full&sslrootcert={CA}",
        "REDIS_URL": f"rediss://:redis-password@redis:6379/0?ssl_cert_reqs=required&ssl_ca_certs={CA}",
        "HEADRACE_WEBHOOK_SECRET": REQUIRED["HEADRACE_WEBHOOK_SECRET"],
        "HEADRACE_SECRET_KEY": new_key(),
        "FLOWER_BASIC_AUTH": REQUIRED["FLOWER_BASIC_AUTH"],
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    # podman keeps the data of a Secret, not the object.
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    podman("secret", "create", "headrace", "-", text=json.dumps(encoded))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    prefix = f"headrace-test-{uuid4().hex[:8]}"
    scratch = tmp_path_factory.mktemp("pods").resolve()
    certificates = scratch / "certificates"
    certificates.mkdir()
    certificates.chmod(0o755)
    podman("network", "create", prefix)
    subnet, gateway = subnet_and_gateway(prefix)
    names = {server: f"{prefix}-{server}" for server in ("postgres", "redis")}
    cluster = Cluster([], prefix, prefix, scratch)
    try:
        authority = run_stores(prefix, names, certificates)  # the bridge is there with the first container
        bucket = ThreadedMotoServer(ip_address=gateway, port=0, verbose=False)
        bucket.start()
        endpoint = "http://{}:{}".format(*bucket.get_host_and_port())
        credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **credentials)
        client.create_bucket(Bucket="headrace")
        overlay = OVERLAY.format(base=way_to_base(scratch), subnet=subnet, endpoint=endpoint)
        (scratch / "kustomization.yaml").write_text(overlay)
        create_secret()
        cluster.objects += render(scratch)
        cluster.objects.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "headrace-authorities"},
                "data": {"ca.crt": authority},
            }
        )
        images = {image: f"localhost/{image}:latest" for image in IMAGES}
        release = cluster.play("release", images)
        assert podman("wait", release.container) == "0", release.log
        for name, count in PODS.items():
            for _ in range(count):
                cluster.play(name, images)
        for pod in itertools.chain.from_iterable(cluster.pods.values()):
            if pod is not release:
                pod.wait_until_ready()
        key = podman("exec", cluster.pods["web"][0].container, "headrace", "keys", "create", "first").split()[
            -1
        ]
        turns = itertools.count()

        def address() -> str:
            pods = [pod for pod in cluster.pods["web"] if pod.takes_calls]
            return f"http://{pods[next(turns) % len(pods)].address}:8000"

        with receiver(host=gateway) as hook:
            customer = Customer(address, key, hook, REQUIRED["HEADRACE_WEBHOOK_SECRET"])
            yield Service(cluster, customer, names["postgres"])
        bucket.stop()
    finally:
        cluster.remove()
        remove_next()
        podman("secret", "rm", "headrace", check=False)
        podman("volume", "rm", "--force", "headrace-authorities", check=False)  # made of the ConfigMap
        for name in names.values():
            podman("rm", "--force", "--ignore", "--volumes", "--time", "5", name)
        podman("network", "rm", "--force", prefix, check=False)


def test_every_connection_is_encrypted(service: Service) -> None:
    """sslmode=verify-full and rediss:// with an authority of our own: all processes understand both."""
    assert service.customer.call("GET", "/ready").json()["status"] == "ready"
    encrypted = service.sql(
        "SELECT client_addr, bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        " WHERE client_addr IS NOT NULL GROUP BY 1"
    )
    assert len(encrypted) >= sum(PODS.values()) - PODS["flower"] - PODS["callbacks"]
    assert all(row.endswith("|t") for row in encrypted), encrypted


def test_a_batch_runs_and_its_webhook_is_signed(service: Service) -> None:
    service.customer.submit(PROMPTS * 8, max_tokens=16)
    service.customer.check_everything()


def test_a_file_is_in_the_bucket(service: Service) -> None:
    """One pod takes the upload, another reads it, and any pod gives the answers out."""
    service.customer.run_file()


def test_a_host_is_cut_off_and_comes_back(service: Service) -> None:
    """Its shards go to another host; when it is back, it writes nothing old and takes new work."""
    customer, pods = service.customer, service.cluster.pods
    for cut in (pods["gpu"][0], pods["gpu"][1], pods["dispatcher"][0], pods["callbacks"][0]):
        batch = customer.submit(PROMPTS * 80, max_tokens=48, ignore_eos=True)
        customer.wait_for_progress(batch)
        cut.set_link("down")
        try:
            customer.wait_for(batch)
        finally:
            cut.set_link("up")
        cut.wait_until_ready()
    customer.check_everything()


def test_an_update_loses_no_call(service: Service) -> None:
    """New pods come before old ones go, and an old one takes no call that it does not answer."""
    cluster, customer = service.cluster, service.customer
    images = build_next()
    stopping = threading.Event()
    submitting = threading.Thread(target=customer.submit_until, args=(stopping,))
    before, unanswered = len(customer.batches), customer.unanswered
    submitting.start()
    try:
        for name in PODS:
            cluster.update(name, images)
    finally:
        stopping.set()
        submitting.join()
    assert len(customer.batches) > before + 1
    assert customer.unanswered == unanswered
    assert all(is_next(pod.container) for name in PODS for pod in cluster.pods[name])
    customer.check_everything()
