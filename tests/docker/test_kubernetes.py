"""docker/kubernetes as it is written, against the schemas of Kubernetes and the Procfile.

What kubectl makes of it: test_rendered_kubernetes.py.
"""

from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.docker.compose_file import DOCKER
from tests.docker.schemas import problems
from worker.preflight import without_driver
from worker.settings import Settings
from worker.up import ROOT, read_procfile

KUBERNETES = DOCKER / "kubernetes"
PROCESSES = read_procfile(ROOT / "Procfile")
OF_KEDA = "keda.sh/v1alpha1"
FILES = [path for path in sorted(KUBERNETES.rglob("*.yaml")) if path.name != "kustomization.yaml"]
# What is no object by itself: it changes others.
PATCHES = {"pod.yaml"}


@cache
def base() -> list[dict[str, Any]]:
    return [
        each for path in FILES if path.name not in PATCHES for each in yaml.safe_load_all(path.read_text())
    ]


def of_kind(kind: str, found: list[dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in found or base() if each["kind"] == kind}


def pods(found: list[dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Return the pod of each process."""
    made = of_kind("Deployment", found) | of_kind("Job", found)
    return {name: each["spec"]["template"] for name, each in made.items()}


def main_container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def secrets(pod: dict[str, Any]) -> set[str]:
    return {each["name"] for each in main_container(pod)["env"]}


def given_settings() -> dict[str, str]:
    """Return the settings of every process."""
    lines = (KUBERNETES / "settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(KUBERNETES).as_posix())
def test_kubernetes_knows_every_field(path: Path) -> None:
    """kubectl refuses a wrong field only where it is applied; the schemas of KEDA are not among these."""
    found = [each for each in yaml.safe_load_all(path.read_text()) if each["apiVersion"] != OF_KEDA]
    assert [problem for each in found for problem in problems(each, is_patch=path.name in PATCHES)] == []


def test_a_wrong_field_is_found() -> None:
    pod = {"containers": [{"name": "main", "comand": []}, {}], "terminationGracePeriodSeconds": "60"}
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong"}, "spec": pod}
    assert problems(wrong) == [
        "Pod.spec.containers.0.comand is unknown",
        "Pod.spec.containers.1.name is missing",
        "Pod.spec.terminationGracePeriodSeconds is no int",
    ]


def test_every_file_is_used() -> None:
    """A file that no kustomization names is read by nobody."""
    used = set()
    for path in KUBERNETES.rglob("kustomization.yaml"):
        written = yaml.safe_load(path.read_text())
        used |= {path.parent / name for name in written["resources"]}
        used |= {path.parent / each["path"] for each in written["patches"] if "path" in each}
    assert used == set(FILES)


def test_there_is_a_pod_for_each_process() -> None:
    """A process that is new in the Procfile must not be missing here."""
    assert set(pods()) == set(PROCESSES)


@pytest.mark.parametrize("name", PROCESSES)
def test_commands_are_the_procfiles(name: str) -> None:
    """Two ways to start a process drift apart: one gets the flag that the other lacks."""
    container = main_container(pods()[name])
    image, _, _ = container["image"].partition(":")
    assert image == ("headrace-worker" if name == "gpu" else "headrace-api")
    if name in {"web", "gpu"}:
        assert "command" not in container, "the image's own"
        return
    expected = PROCESSES[name].replace(
        "--address=127.0.0.1 --port=${FLOWER_PORT:-5555}", "--address=0.0.0.0 --port=5555"
    )
    assert container["command"] == expected.split()


@pytest.mark.parametrize("name", PROCESSES)
def test_pods_say_what_they_need(name: str) -> None:
    """A pod without requests is the first to go, and one without a limit takes its node's memory."""
    resources = main_container(pods()[name])["resources"]
    assert {"cpu", "memory"} <= set(resources["requests"])
    assert "memory" in resources["limits"]
    assert pods()[name]["spec"]["priorityClassName"] in of_kind("PriorityClass")


@pytest.mark.parametrize("name", [name for name in PROCESSES if name != "release"])
def test_pods_say_how_they_are(name: str) -> None:
    container = main_container(pods()[name])
    if name == "web":
        assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
        return
    assert container["readinessProbe"]["exec"]["command"] == ["python", "docker/health.py", name]
    # They ask Postgres or Redis: an outage must not restart every pod.
    assert "livenessProbe" not in container


def test_each_process_has_only_its_secrets() -> None:
    """As in compose.yaml."""
    stores = {"DATABASE_URL", "REDIS_URL"}
    # Who uses Postgres knows whether there is a pooler before it.
    pooled = {name for name, pod in pods().items() if "DATABASE_DIRECT_URL" in secrets(pod)}
    assert pooled == pods().keys() - {"flower"}
    bucket = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    own = {name: secrets(pod) - stores - {"DATABASE_DIRECT_URL"} for name, pod in pods().items()}
    assert own == {
        "release": set(),
        "web": {"HEADRACE_SECRET_KEY", *bucket},
        "gpu": {"HEADRACE_WEBHOOK_SECRET"},
        "callbacks": {"HEADRACE_WEBHOOK_SECRET", "HEADRACE_SECRET_KEY"},
        "dispatcher": set(),
        "files": bucket,
        "flower": {"FLOWER_BASIC_AUTH"},
    }
    assert all(stores <= secrets(pod) for pod in pods().values())
    assert not of_kind("Secret"), "a secret in a file is no secret"


def test_settings_are_settings() -> None:
    """A misspelt name is ignored in silence."""
    assert set(given_settings()) <= {f"HEADRACE_{name.upper()}" for name in Settings.model_fields}


def test_stopping_leaves_time_to_drain() -> None:
    """Kubernetes kills what has not stopped in its time: leases expire, and attempts are sent twice."""
    drain = float(given_settings()["HEADRACE_DRAIN_SECONDS"])
    grace = {name: pod["spec"].get("terminationGracePeriodSeconds", 30) for name, pod in pods().items()}
    assert grace["gpu"] >= drain + 15
    assert grace["callbacks"] >= Settings.model_fields["webhook_timeout_seconds"].default + 10
    assert main_container(pods()["web"])["lifecycle"]["preStop"]


def test_an_update_never_leaves_a_service_without_a_pod() -> None:
    for name, deployment in of_kind("Deployment").items():
        rolling = deployment["spec"]["strategy"]["rollingUpdate"]
        # A device is not there twice.
        assert rolling == (
            {"maxUnavailable": 1, "maxSurge": 0} if name == "gpu" else {"maxUnavailable": 0, "maxSurge": 1}
        )


def test_keda_reads_what_the_dispatcher_writes(database_url: str) -> None:
    """Its query runs, and is 0 where nothing is wanted."""
    (scaled,) = of_kind("ScaledObject").values()
    target = of_kind("Deployment")[scaled["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"], "each apply would set it back"
    (config,) = yaml.safe_load((KUBERNETES / "keda" / "kustomization.yaml").read_text())["configMapGenerator"]
    assert config["literals"] == [f"HEADRACE_MAX_WORKERS={scaled['spec']['maxReplicaCount']}"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] in of_kind("TriggerAuthentication")
    with psycopg.connect(without_driver(database_url)) as connection:
        connection.execute("DELETE FROM wanted_workers")
        (found,) = connection.execute(trigger["metadata"]["query"]).fetchall()
    assert found == (0,)
