"""docker/kubernetes as kubectl renders it, against the schemas of Kubernetes: `make kubernetes-lint`."""

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.test_kubernetes import KUBERNETES, OF_KEDA, PROCESSES, main_container, of_kind, pods
from worker.settings import Settings
from worker.up import ROOT, SWITCHING_COMMAND

pytestmark = pytest.mark.containers

TOOLS = Path(sys.prefix) / "kubernetes" / "bin"  # of an environment of their own
OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}]
components: [{base}/keda]
"""


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


def test_everything_is_valid(with_keda: list[dict[str, Any]]) -> None:
    """Also the old fields that kubectl does not refuse."""
    validate(with_keda)


@pytest.mark.parametrize("name", PROCESSES)
def test_pods_have_no_privileges(name: str) -> None:
    """A tokenizer or a webhook answer that breaks out should find nothing to use."""
    pod = pods(base())[name]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    container = main_container(pods(base())[name])["securityContext"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False


def test_only_dispatchers_may_change_pods(with_keda: list[dict[str, Any]]) -> None:
    """And only where workers are scaled: whoever may change a pod may read the secrets of all."""
    assert not of_kind("Role", base())
    found = {name: each["spec"] for name, each in pods(with_keda).items()}
    assert {name for name, spec in found.items() if spec["automountServiceAccountToken"]} == {"dispatcher"}
    assert {name for name, spec in found.items() if "serviceAccountName" in spec} == {"dispatcher"}
    (role,) = of_kind("Role", with_keda).values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    (binding,) = of_kind("RoleBinding", with_keda).values()
    assert [each["name"] for each in binding["subjects"]] == list(of_kind("ServiceAccount", with_keda))


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
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(base()).items()}

    def chosen(selector: dict[str, str]) -> set[str]:
        return {name for name, its in labels.items() if selector.items() <= its.items()}

    for name, deployment in of_kind("Deployment", base()).items():
        assert chosen(deployment["spec"]["selector"]["matchLabels"]) == {name}
    for name, service in of_kind("Service", base()).items():
        assert chosen(service["spec"]["selector"]) == {name}
    for name, budget in of_kind("PodDisruptionBudget", base()).items():
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == {name}
    closed = of_kind("NetworkPolicy", base())["headrace-stores"]["spec"]
    assert chosen(closed["podSelector"]["matchLabels"]) == set(PROCESSES)
    assert "ingress" not in closed, "what no other policy opens stays closed"


def documented(first_words: str) -> list[str]:
    """Return the YAML of docs/kubernetes.md that begins so."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    return re.findall(rf"```yaml\n({re.escape(first_words)}.*?)```", text, re.DOTALL)


def write_overlay(directory: Path, overlay: str) -> Path:
    directory.mkdir()
    overlay = overlay.replace("../docker/kubernetes", way_to_base(directory))
    (directory / "kustomization.yaml").write_text(overlay)
    return directory


def test_the_overlay_in_the_documentation_works(tmp_path: Path) -> None:
    """It is what people copy: its patches must find what they change."""
    overlay, _ = documented("# kustomization")
    found = render(write_overlay(tmp_path / "production", overlay))
    validate(found)
    (config,) = of_kind("ConfigMap", found).values()
    assert {"HEADRACE_BLOB_URL", "HEADRACE_LOG_FORMAT", "HEADRACE_MODEL"} <= set(config["data"])
    (binding,) = of_kind("RoleBinding", found).values()
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dispatcher", "namespace": "headrace"}]
    for name, deployment in of_kind("Deployment", found).items():
        container = main_container(deployment["spec"]["template"])
        assert container["image"].startswith("registry.example.com/headrace-")
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("/models" in mounts) == (name in {"web", "files", "gpu"})


def test_the_overlay_for_a_pooler_works(tmp_path: Path) -> None:
    """KEDA asks Postgres itself, with what the Secret has beside the pooler's address."""
    overlay, _ = documented("# kustomization")
    (patch,) = documented("  - target: {kind: TriggerAuthentication, name: headrace}")
    found = render(write_overlay(tmp_path / "production", overlay + patch))
    validate(found)
    (authentication,) = of_kind("TriggerAuthentication", found).values()
    (asked,) = authentication["spec"]["secretTargetRef"]
    assert asked["key"] == "DATABASE_DIRECT_URL"


def test_the_overlays_for_two_models_work(tmp_path: Path) -> None:
    overlay, second = documented("# kustomization")
    (patch,) = documented("  - target: {kind: Deployment, name: gpu}")
    without_keda = re.sub("components: .*\n", "", overlay)
    settings = without_keda.replace("HEADRACE_MAX_WORKERS=8", "HEADRACE_MODELS=/models/llama,/models/small")
    found = render(write_overlay(tmp_path / "production", settings + patch))
    validate(found)
    (config,) = of_kind("ConfigMap", found).values()
    assert config["data"]["HEADRACE_MODELS"] == "/models/llama,/models/small"
    assert main_container(pods(found)["gpu"])["command"] == SWITCHING_COMMAND.split()

    found = render(write_overlay(tmp_path / "small", second))
    validate(found)
    assert set(pods(found)) == {"web", "files"}
    (config,) = of_kind("ConfigMap", found).values()
    assert config["data"]["HEADRACE_MODEL"] == "/models/small"
    assert config["data"]["HEADRACE_BLOB_URL"] == "s3://your-bucket/headrace"
    namespaces = {each["metadata"].get("namespace") for each in found if each["kind"] != "PriorityClass"}
    assert namespaces == {"headrace-small"}
    for pod in pods(found).values():
        assert main_container(pod)["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
