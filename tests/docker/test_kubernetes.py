"""docker/kubernetes as kubectl renders it, against the schemas of Kubernetes and the Procfile."""

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.docker.compose_file import DOCKER
from worker.preflight import without_driver
from worker.settings import Settings
from worker.up import ROOT, read_procfile

pytestmark = pytest.mark.containers

KUBERNETES = DOCKER / "kubernetes"
TOOLS = Path(sys.prefix) / "kubernetes" / "bin"  # of an environment of their own
PROCESSES = read_procfile(ROOT / "Procfile")
OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}]
components: [{base}/keda]
"""
OF_KEDA = "keda.sh/v1alpha1"


def render(directory: Path) -> list[dict[str, Any]]:
    """Return what kubectl makes of a directory with a kustomization."""
    command = [TOOLS / "kubectl", "kustomize", directory]
    return list(
        yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    )


def validate(objects: list[dict[str, Any]]) -> None:
    """Check objects against the newest schemas; those of KEDA are not among them."""
    known = [each for each in objects if each["apiVersion"] != OF_KEDA]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(known, file)
        file.flush()
        command = [TOOLS / "kubernetes-validate", "--strict", file.name]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@cache
def base() -> list[dict[str, Any]]:
    return render(KUBERNETES)


def way_to_base(directory: Path) -> str:
    """Return the path from an overlay's directory to the manifests: kubectl takes no absolute one."""
    return os.path.relpath(KUBERNETES, directory.resolve())


@pytest.fixture(scope="module")
def with_keda(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("overlay")
    overlay = OVERLAY.format(base=way_to_base(directory))
    (directory / "kustomization.yaml").write_text(overlay)
    return render(directory)


def of_kind(kind: str, found: list[dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in found or base() if each["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod of each process."""
    return {name: each["spec"]["template"] for name, each in (of_kind("Deployment") | of_kind("Job")).items()}


def main_container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def secrets(pod: dict[str, Any]) -> set[str]:
    return {each["name"] for each in main_container(pod)["env"]}


def test_everything_is_valid(with_keda: list[dict[str, Any]]) -> None:
    """kubectl refuses a wrong field only where it is applied, and an old one not even there."""
    validate(with_keda)


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
def test_pods_have_no_privileges(name: str) -> None:
    """A tokenizer or a webhook answer that breaks out should find nothing to use."""
    pod = pods()[name]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    container = main_container(pods()[name])["securityContext"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False


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
    bucket = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert {name: secrets(pod) - stores for name, pod in pods().items()} == {
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


def test_settings_are_settings(with_keda: list[dict[str, Any]]) -> None:
    """A misspelt name is ignored in silence."""
    (given,) = (each["data"] for each in of_kind("ConfigMap", with_keda).values())
    known = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields}
    assert set(given) <= known
    assert given["HEADRACE_MAX_WORKERS"]
    for each in of_kind("Deployment", with_keda).values():
        (source,) = main_container(each["spec"]["template"])["envFrom"]
        assert source["configMapRef"]["name"] in of_kind("ConfigMap", with_keda)


def test_selectors_find_their_pods() -> None:
    """A Service or a budget without a pod says nothing and does nothing."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods().items()}

    def chosen(selector: dict[str, str]) -> set[str]:
        return {name for name, its in labels.items() if selector.items() <= its.items()}

    for name, deployment in of_kind("Deployment").items():
        assert chosen(deployment["spec"]["selector"]["matchLabels"]) == {name}
    for name, service in of_kind("Service").items():
        assert chosen(service["spec"]["selector"]) == {name}
    for name, budget in of_kind("PodDisruptionBudget").items():
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == {name}
    closed = of_kind("NetworkPolicy")["headrace-stores"]["spec"]
    assert chosen(closed["podSelector"]["matchLabels"]) == set(PROCESSES)
    assert "ingress" not in closed, "what no other policy opens stays closed"


def test_stopping_leaves_time_to_drain() -> None:
    """Kubernetes kills what has not stopped in its time: leases expire, and attempts are sent twice."""
    (config,) = of_kind("ConfigMap").values()
    drain = float(config["data"]["HEADRACE_DRAIN_SECONDS"])
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


def test_keda_reads_what_the_dispatcher_writes(with_keda: list[dict[str, Any]], database_url: str) -> None:
    """Its query runs, and is 0 where nothing is wanted."""
    (scaled,) = of_kind("ScaledObject", with_keda).values()
    target = of_kind("Deployment", with_keda)[scaled["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"], "each apply would set it back"
    (config,) = of_kind("ConfigMap", with_keda).values()
    assert config["data"]["HEADRACE_MAX_WORKERS"] == str(scaled["spec"]["maxReplicaCount"])
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] in of_kind("TriggerAuthentication", with_keda)
    with psycopg.connect(without_driver(database_url)) as connection:
        connection.execute("DELETE FROM wanted_workers")
        (found,) = connection.execute(trigger["metadata"]["query"]).fetchall()
    assert found == (0,)


def test_the_overlay_in_the_documentation_works(tmp_path: Path) -> None:
    """It is what people copy: its patches must find what they change."""
    written = re.search(
        r"```yaml\n(# kustomization.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL
    )
    assert written is not None
    overlay = written[1].replace("../docker/kubernetes", way_to_base(tmp_path))
    (tmp_path / "kustomization.yaml").write_text(overlay)
    found = render(tmp_path)
    validate(found)
    (config,) = of_kind("ConfigMap", found).values()
    assert {"HEADRACE_BLOB_URL", "HEADRACE_LOG_FORMAT", "HEADRACE_MODEL"} <= set(config["data"])
    for name, deployment in of_kind("Deployment", found).items():
        container = main_container(deployment["spec"]["template"])
        assert container["image"].startswith("registry.example.com/headrace-")
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("/models" in mounts) == (name in {"web", "files", "gpu"})
