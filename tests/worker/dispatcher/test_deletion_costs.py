"""What Kubernetes is told about the pods of gpu workers, over TLS."""

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docker.authority import write_certificates
from worker.dispatcher import deletion_costs
from worker.dispatcher.deletion_costs import ANNOTATION, DeletionCosts


@dataclass(slots=True)
class ApiServer:
    """What was asked of it, and what it answers."""

    url: str
    status: int = 200
    calls: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    def take(self) -> list[tuple[str, object]]:
        """Return the pods that were patched since the last time, with their costs."""
        found = [(path.rpartition("/")[2], body["metadata"]) for path, _, body in self.calls]
        self.calls.clear()
        return [(pod, metadata["annotations"][ANNOTATION]) for pod, metadata in found]  # type: ignore[index]


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.calls.append((self.path, self.headers["Authorization"], body))
            self.send_response(state.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    (tmp_path / "ca.crt").write_text(write_certificates(tmp_path, "localhost"))
    (tmp_path / "namespace").write_text("fleet")
    (tmp_path / "token").write_text("secret")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "localhost.crt", tmp_path / "localhost.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state = ApiServer(f"https://localhost:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def costs(api_server: ApiServer, tmp_path: Path) -> DeletionCosts:
    return DeletionCosts(tmp_path, api_server.url)


def test_a_pod_in_use_costs_more_than_an_idle_one(costs: DeletionCosts, api_server: ApiServer) -> None:
    costs.write({"gpu@gpu-a/7-f": True, "gpu@gpu-b/7-f": False})
    path, authorization, _ = api_server.calls[0]
    assert (path, authorization) == ("/api/v1/namespaces/fleet/pods/gpu-a", "Bearer secret")
    assert api_server.take() == [("gpu-a", "1"), ("gpu-b", "0")]


def test_only_changes_are_written(costs: DeletionCosts, api_server: ApiServer) -> None:
    """Each write is a change of an object that every controller of the cluster watches."""
    for _ in range(3):
        costs.write({"gpu@gpu-a/7-f": True, "gpu@gpu-b/7-f": False})
    assert len(api_server.take()) == 2
    costs.write({"gpu@gpu-a/7-f": False, "gpu@gpu-b/7-f": False})
    assert api_server.take() == [("gpu-a", "0")]


def test_a_pod_of_two_workers_is_in_use_if_one_is(costs: DeletionCosts, api_server: ApiServer) -> None:
    costs.write({"gpu0@gpu-a/7-f": True, "gpu1@gpu-a/8-f": False})
    assert api_server.take() == [("gpu-a", "1")]


def test_what_is_refused_is_tried_again(costs: DeletionCosts, api_server: ApiServer) -> None:
    api_server.status = 403
    costs.write({"gpu@gpu-a/7-f": True})
    api_server.status = 200
    costs.write({"gpu@gpu-a/7-f": True})
    assert api_server.take() == [("gpu-a", "1"), ("gpu-a", "1")]


def test_a_large_fleet_is_written_in_several_turns(
    costs: DeletionCosts, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision on how many are wanted waits for a turn. Those that must not go come first."""
    monkeypatch.setattr(deletion_costs, "TURN_SECONDS", 0.0)
    fleet = {"gpu@gpu-a/7-f": False, "gpu@gpu-b/7-f": True, "gpu@gpu-c/7-f": False}
    for pod, cost in (("gpu-b", "1"), ("gpu-a", "0"), ("gpu-c", "0")):
        costs.write(fleet)
        assert api_server.take() == [(pod, cost)]


def test_a_worker_without_a_pod_is_asked_for_once(costs: DeletionCosts, api_server: ApiServer) -> None:
    api_server.status = 404
    for _ in range(2):
        costs.write({"gpu@elsewhere/7-f": True, "gpu@gpu-a/7-f": True})
    assert api_server.take() == [("elsewhere", "1"), ("gpu-a", "1")]


def test_a_server_of_another_authority_gets_no_token(
    costs: DeletionCosts, api_server: ApiServer, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "ca.crt").write_text(write_certificates(other))
    costs.write({"gpu@gpu-a/7-f": True})
    assert api_server.calls == []


def test_outside_a_cluster_nothing_is_asked(api_server: ApiServer, tmp_path: Path) -> None:
    DeletionCosts(tmp_path / "nowhere", api_server.url).write({"gpu@gpu-a/7-f": True})
    assert api_server.calls == []
