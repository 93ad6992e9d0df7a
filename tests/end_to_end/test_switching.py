"""One worker for two models: each has an API and a batch, and each batch ends, run by its own model."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures import deployment as fixtures
from tests.fixtures.deployment import deployment, eventually, free_port
from tests.fixtures.mixed import answers_of, in_turns, submit
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
    options["HEADRACE_DATA_DIR"] = str(tmp_path / "data")
    body: dict[str, Any] = {"prompts": [f"prompt {i}" for i in range(4)], "max_tokens": 8, "temperature": 0}
    with deployment(
        tmp_path, one, processes=("switching", "web", "dispatcher", "files"), **options
    ) as running:
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
            # Lines of one file, for either API, go to both models in turns.
            lines = in_turns(body["prompts"], ["one", "other"], max_tokens=8, temperature=0)
            answers = answers_of(second, submit(second, lines))
            assert [answers[str(i)]["model"] for i in range(8)] == ["one", "other"] * 4
            # A client of the other model waits until its turn has come.
            asked = {"model": "other", "prompt": "prompt", "max_tokens": 4}
            answer = client.post("/v1/completions", json=asked)
            assert (answer.status_code, answer.json()["model"]) == (200, "other"), answer.text

            def statuses(api: httpx.Client) -> dict[str, str]:
                return {one["id"]: one["status"] for one in api.get("/v1/models").json()["data"]}

            expected = {"one": "unloaded", "other": "loaded"}
            eventually(lambda: statuses(client) == statuses(running.client) == expected)
