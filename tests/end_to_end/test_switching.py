"""One worker for two models: each has an API and a batch, and each batch ends, run by its own model."""

from pathlib import Path

import httpx
import pytest

from tests.fixtures import deployment as fixtures
from tests.fixtures.deployment import deployment, eventually, free_port
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.contract.models import identify
from worker.up import ROOT, SWITCHING_COMMAND, read_procfile, start


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_worker_serves_two_models_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = write_tiny_llama(tmp_path / "one"), write_tiny_llama(tmp_path / "other", seed=1)
    procfile = read_procfile(ROOT / "Procfile")
    monkeypatch.setattr(fixtures, "read_procfile", lambda _: procfile | {"switching": SWITCHING_COMMAND})
    options = {"HEADRACE_MODELS": f"{one},{other}", "HEADRACE_DRAIN_SECONDS": "1"}
    body = {"prompts": [f"prompt {i}" for i in range(4)], "max_tokens": 8, "temperature": 0}
    with deployment(tmp_path, one, processes=("switching", "web", "dispatcher"), **options) as running:
        port = str(free_port())
        environment = running.environment | {"HEADRACE_MODEL": str(other), "PORT": port}
        with (tmp_path / "web2.log").open("w") as log:
            running.processes["web2"] = start(procfile["web"], output=log, environment=environment)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            second = fixtures.Deployment(running.environment, client, tmp_path)
            second.wait_until_ready()
            for api, directory in ((running, one), (second, other), (running, one)):
                batch = api.submit(**body)
                assert api.wait_for(batch)["status"] == "completed"
                revisions = {result["model"]["revision"] for result in api.results(batch)}
                assert revisions == {identify(directory).fingerprint}
            # A client of the other model waits until its turn has come.
            asked = {"model": "other", "prompt": "prompt", "max_tokens": 4}
            answer = client.post("/v1/completions", json=asked)
            assert (answer.status_code, answer.json()["model"]) == (200, "other"), answer.text

            def status(api: httpx.Client) -> str:
                return str(api.get("/v1/models").json()["data"][0]["status"])

            eventually(lambda: (status(client), status(running.client)) == ("loaded", "unloaded"))
