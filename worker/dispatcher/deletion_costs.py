"""Tell Kubernetes which pods of gpu workers may go first: those that have had no work for a while.

Kubernetes itself chooses the pods that end when fewer are wanted, those of the lowest deletion cost first.
A dispatcher writes the costs, as it reads nothing that strangers wrote: a gpu worker gets no right over pods.
https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import httpx

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where a pod has its rights
API_SERVER = "https://kubernetes.default.svc"
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
IN_USE, IDLE = "1", "0"
TIMEOUT_SECONDS = 2.0
TURN_SECONDS = 2.0  # of all calls of one turn: a decision waits for it


@dataclass(slots=True)
class DeletionCosts:
    """The deletion costs of pods, as this process has written them."""

    directory: Path = SERVICE_ACCOUNT
    server: str = API_SERVER
    _written: dict[str, str] = field(default_factory=dict)  # by the name of the pod
    _complained: bool = False

    def write(self, workers: Mapping[str, bool]) -> None:
        """Write what has changed, by the Identity of each live worker and whether it is in use.

        Does nothing where this process has no rights in a cluster. What fails or takes too long is left to
        the next time.
        """
        if not (self.directory / "token").exists():
            return
        # Several workers may share a pod, whose name is that of the host.
        in_use = {_host_of(name) for name, is_used in workers.items() if is_used}
        costs = {host: IN_USE if host in in_use else IDLE for host in map(_host_of, workers)}
        changed = {pod: cost for pod, cost in costs.items() if self._written.get(pod) != cost}
        self._written = {pod: cost for pod, cost in self._written.items() if pod in costs}
        if not changed:
            return
        try:
            self._patch(changed)
            self._complained = False
        except (OSError, httpx.HTTPError) as error:
            level = logging.DEBUG if self._complained else logging.WARNING
            logger.log(level, "the deletion costs of pods are not written: %s", error)
            self._complained = True

    def _patch(self, costs: Mapping[str, str]) -> None:
        namespace = (self.directory / "namespace").read_text()
        headers = {
            "Authorization": f"Bearer {(self.directory / 'token').read_text()}",  # it changes every hour
            "Content-Type": "application/merge-patch+json",
        }
        authority = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        with httpx.Client(
            base_url=self.server, headers=headers, verify=authority, timeout=TIMEOUT_SECONDS, trust_env=False
        ) as client:
            latest = time.monotonic() + TURN_SECONDS
            for pod, cost in sorted(costs.items(), key=lambda item: item[1], reverse=True):
                path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
                answer = client.patch(path, json={"metadata": {"annotations": {ANNOTATION: cost}}})
                if answer.status_code != HTTPStatus.NOT_FOUND:  # a worker outside this namespace
                    answer.raise_for_status()
                self._written[pod] = cost
                if time.monotonic() > latest:
                    return


def _host_of(identity: str) -> str:
    """Return the host of a worker, from its Identity: QUEUE@HOST/PROCESS."""
    return identity.partition("@")[2].partition("/")[0]
