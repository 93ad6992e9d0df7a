"""Runs rendered Deployments as pods of podman: each has its own network namespace, address and file system.

What a cluster would do is done here by hand: as many pods as there are replicas, probes, preStop, and one
pod after another in an update.
"""

import json
import subprocess
import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.docker.podman import HEALTHY_SECONDS, inspect, podman, succeeds
from tests.fixtures.deployment import eventually


@dataclass(slots=True)
class Pod:
    """A running pod of one process."""

    name: str
    spec: dict[str, Any]
    address: str = ""  # in the network, while it runs
    takes_calls: bool = False  # as an endpoint of a Service

    @property
    def container(self) -> str:
        """The name of its container."""
        return f"{self.name}-main"

    @property
    def infra(self) -> dict[str, Any]:
        """What podman knows of the container that holds its network."""
        return inspect(json.loads(podman("pod", "inspect", self.name))["InfraContainerID"])

    def play(self, file: Path, network: str) -> None:
        """Run what a file says."""
        podman("kube", "play", "--network", network, str(file))
        (found,) = self.infra["NetworkSettings"]["Networks"].values()
        self.address = str(found["IPAddress"])

    @property
    def is_ready(self) -> bool:
        """Do what its readiness probe says."""
        probe = self.spec["containers"][0]["readinessProbe"]
        if "exec" in probe:
            return succeeds("exec", self.container, *probe["exec"]["command"])
        try:
            url = f"http://{self.address}:8000{probe['httpGet']['path']}"
            return httpx.get(url, timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False

    @property
    def log(self) -> str:
        """What it has said."""
        done = subprocess.run(["podman", "logs", self.container], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def wait_until_ready(self) -> None:
        """Wait for its readiness probe; from then on it takes calls."""
        eventually(lambda: self.is_ready, seconds=HEALTHY_SECONDS, what=f"a ready {self.name}")
        self.takes_calls = True

    def set_link(self, state: str) -> None:
        """Cut its host off the network, or connect it again: `down` or `up`."""
        pid = str(self.infra["State"]["Pid"])
        subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", "eth0", state], check=True)

    def stop(self) -> int:
        """Send no more calls, run preStop, then stop it within its time; return the status of its process."""
        self.takes_calls = False
        hook = self.spec["containers"][0].get("lifecycle", {}).get("preStop")
        if hook is not None:
            podman("exec", self.container, *hook["exec"]["command"])
        podman("stop", "--time", str(self.spec.get("terminationGracePeriodSeconds", 30)), self.container)
        return int(inspect(self.container)["State"]["ExitCode"])

    def remove(self) -> None:
        """Remove it, running or not."""
        podman("pod", "rm", "--force", "--ignore", "--time", "5", self.name)


@dataclass(slots=True)
class Cluster:
    """The pods of rendered objects."""

    objects: list[dict[str, Any]]
    network: str
    prefix: str
    scratch: Path
    pods: dict[str, list[Pod]] = field(default_factory=dict)
    started: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def template(self, name: str) -> dict[str, Any]:
        """Return the pod of a Deployment or Job."""
        (found,) = (
            each
            for each in self.objects
            if each["kind"] in {"Deployment", "Job"} and each["metadata"]["name"] == name
        )
        return dict(deepcopy(found["spec"]["template"]))

    def play(self, name: str, images: Mapping[str, str]) -> Pod:
        """Start one pod of a process."""
        with self.lock:
            self.started += 1
            pod_name = f"{self.prefix}-{name}-{self.started}"
        template = self.template(name)
        (container,) = template["spec"]["containers"]
        container["image"] = images[container["image"].partition(":")[0]]
        container.pop("ports", None)  # podman would publish them on this machine
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod_name, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        config = [each for each in self.objects if each["kind"] == "ConfigMap"]
        file = self.scratch / f"{pod_name}.yaml"
        file.write_text(yaml.safe_dump_all([*config, document]))
        pod = Pod(pod_name, template["spec"])
        self.pods.setdefault(name, []).append(pod)
        pod.play(file, self.network)
        return pod

    def update(self, name: str, images: Mapping[str, str]) -> None:
        """Replace each pod of a process as its Deployment says: the new one first, or the old one."""
        (deployment,) = (
            each for each in self.objects if each["kind"] == "Deployment" and each["metadata"]["name"] == name
        )
        surge = deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
        for old in list(self.pods[name]):
            if surge:
                self.play(name, images).wait_until_ready()
            assert old.stop() == 0, old.log[-2000:]
            old.remove()
            self.pods[name].remove(old)
            if not surge:
                self.play(name, images).wait_until_ready()

    def remove(self) -> None:
        """Remove every pod."""
        for pods in self.pods.values():
            for pod in pods:
                pod.remove()
