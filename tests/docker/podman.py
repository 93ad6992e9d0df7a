"""Runs the services of a compose file with podman: as much of the format as ours uses, and no daemon.

Health checks run when they are asked for: podman would have systemd run them by itself.
"""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docker.compose_file import seconds
from tests.fixtures.deployment import eventually

HEALTHY_SECONDS = 300  # on a machine far slower than this one
IMAGES = ("headrace-api", "headrace-worker")


def podman(*arguments: str, text: str | None = None, check: bool = True) -> str:
    """Run podman; return what it printed. A failure shows both of its outputs."""
    done = subprocess.run(["podman", *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"podman {shlex.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout.strip()


def succeeds(*arguments: str) -> bool:
    """Run podman; return whether it succeeded."""
    return subprocess.run(["podman", *arguments], capture_output=True, check=False).returncode == 0


def inspect(name: str) -> dict[str, Any]:
    """Return what podman knows of a container."""
    return dict(json.loads(podman("container", "inspect", name))[0])


def subnet_and_gateway(network: str) -> tuple[str, str]:
    """Return the addresses of a network, and that of this machine in it."""
    found = json.loads(podman("network", "inspect", network))[0]["subnets"][0]
    return str(found["subnet"]), str(found["gateway"])


def build_next() -> dict[str, str]:
    """Build a next version of both images, which differs in a label only; return its name by theirs."""
    found = {image: f"localhost/{image}:next" for image in IMAGES}
    for image, name in found.items():
        podman("build", "--tag", name, "-", text=f"FROM {image}\nLABEL release=next\n")
    return found


def is_next(container: str) -> bool:
    """Return whether a container runs the next version of its image."""
    return (inspect(container)["Config"]["Labels"] or {}).get("release") == "next"


def remove_next() -> None:
    """Remove the next versions of both images, where they are."""
    for image in IMAGES:
        podman("image", "rm", f"localhost/{image}:next", check=False)


@dataclass(slots=True)
class Compose:
    """A compose document, and its containers under the name of a project."""

    document: dict[str, Any]
    directory: Path  # of the compose file
    project: str
    scratch: Path
    images: dict[str, str] = field(default_factory=dict)  # what runs in place of an image
    profiles: set[str] = field(default_factory=set)

    @property
    def services(self) -> dict[str, Any]:
        """The services of no profile, and of the chosen ones, by name."""
        found = self.document["services"].items()
        return {name: each for name, each in found if self.profiles.issuperset(each.get("profiles", ()))}

    @property
    def network(self) -> str:
        """The network of every service."""
        return f"{self.project}_default"

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.project}-{service}-1"

    def image(self, service: str) -> str:
        """Return the image that a service runs."""
        named = str(self.services[service]["image"])
        return self.images.get(named, named)

    def create_network(self) -> None:
        """Make the network."""
        podman("network", "create", self.network)

    def up(self) -> None:
        """Start every service when what it waits for is as it should be; return when all are healthy."""
        left = dict(self.services)
        while left:
            ready = [
                name for name, service in left.items() if not set(service.get("depends_on", {})) & set(left)
            ]
            assert ready, f"they wait for each other: {', '.join(left)}"
            for name in ready:
                self.start(name)
                del left[name]
        self.wait_until_healthy()

    def start(self, service: str) -> None:
        """Wait for what a service depends on, then run its container."""
        for other, wanted in self.services[service].get("depends_on", {}).items():
            if wanted["condition"] == "service_completed_successfully":
                assert podman("wait", self.container(other)) == "0", self.log(other)
            else:
                self.wait_until_healthy([other])
        podman("run", "--detach", *self._options(service), self.image(service), *self._command(service))

    def replace(self, service: str) -> None:
        """Stop a service's container and run one of the present image, as after a change of the image."""
        self.stop(service)
        podman("rm", self.container(service))
        self.start(service)

    def stop(self, service: str) -> int:
        """Stop a service within its time of grace; return its exit status."""
        podman("stop", self.container(service))
        return int(inspect(self.container(service))["State"]["ExitCode"])

    def crash(self, service: str) -> None:
        """End a service's first process by SIGKILL, from outside; return when podman has noticed."""
        before = inspect(self.container(service))["State"]
        os.kill(before["Pid"], signal.SIGKILL)
        eventually(
            lambda: inspect(self.container(service))["State"]["Pid"] != before["Pid"],
            what=f"the end of {service}",
        )

    def is_healthy(self, service: str) -> bool:
        """Run a service's health check."""
        return succeeds("healthcheck", "run", self.container(service))

    def wait_until_healthy(self, services: Iterable[str] = ()) -> None:
        """Wait for the health checks of services, by default of all."""
        for name in services or self.services:
            if not self.services[name]["healthcheck"].get("disable"):
                eventually(
                    lambda name=name: self.is_healthy(name),
                    seconds=HEALTHY_SECONDS,
                    what=f"a healthy {name}: {self.log(name)[-2000:] if self._exists(name) else 'not there'}",
                )

    def log(self, service: str) -> str:
        """Return what a service has said."""
        done = subprocess.run(
            ["podman", "logs", self.container(service)], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container; return what it printed."""
        return podman("exec", self.container(service), *command)

    def down(self) -> None:
        """Remove every container, the volumes and the network."""
        for name in reversed(list(self.document["services"])):
            podman("rm", "--force", "--ignore", "--time", "5", self.container(name))
        for volume in self.document["volumes"]:
            podman("volume", "rm", "--force", f"{self.project}_{volume}", check=False)
        podman("network", "rm", "--force", self.network, check=False)

    def _exists(self, service: str) -> bool:
        return succeeds("container", "exists", self.container(service))

    def _command(self, service: str) -> Sequence[str]:
        command = self.services[service].get("command", [])
        return shlex.split(command) if isinstance(command, str) else command

    def _options(self, name: str) -> list[str]:
        service = dict(self.services[name])
        found = ["--name", self.container(name), "--network", self.network, "--network-alias", name]
        for key in ("image", "command", "depends_on", "build", "profiles"):
            service.pop(key, None)
        if service.pop("init", False):
            found.append("--init")
        found += [f"--restart={service.pop('restart', 'no')}"]
        found += [f"--cap-drop={capability}" for capability in service.pop("cap_drop", [])]
        found += [
            f"--security-opt={option.removesuffix(':true')}" for option in service.pop("security_opt", [])
        ]
        found += [f"--env={key}={value}" for key, value in service.pop("environment", {}).items()]
        found += [f"--publish={port}" for port in service.pop("ports", [])]
        found += [f"--volume={self._volume(volume)}" for volume in service.pop("volumes", [])]
        found += [f"--volume={self._config(config)}" for config in service.pop("configs", [])]
        found += _health(service.pop("healthcheck"))
        found += [f"--stop-timeout={seconds(service.pop('stop_grace_period', '10s'))}"]
        assert not service, f"{name}: nobody runs {', '.join(service)}"
        return found

    def _volume(self, volume: str) -> str:
        source, separator, rest = volume.partition(":")
        named = source in self.document["volumes"]
        return (
            f"{self.project}_{source}" + separator + rest
            if named
            else (f"{(self.directory / source).resolve()}{separator}{rest}")
        )

    def _config(self, config: dict[str, str]) -> str:
        file = self.scratch / config["source"]
        file.write_text(self.document["configs"][config["source"]]["content"])
        file.chmod(0o444)
        return f"{file}:{config['target']}:ro"


def _health(health: dict[str, Any]) -> list[str]:
    if health.get("disable"):
        return ["--no-healthcheck"]
    kind, *words = health["test"]
    command = words[0] if kind == "CMD-SHELL" else json.dumps(health["test"][1:])
    return [f"--health-cmd={command}", "--health-interval=disable", f"--health-timeout={health['timeout']}"]
