"""A deployment without gpu workers: the first batch starts one, and it ends when it has no work."""

from pathlib import Path

import pytest

from tests.fixtures.deployment import deployment, eventually
from worker.up import AUTOSCALE_COMMAND, start


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_scales_to_zero_and_back(tiny_model: Path, tmp_path: Path) -> None:
    processes = ("web", "callbacks", "dispatcher")
    with deployment(tmp_path, tiny_model, processes=processes, HEADRACE_MAX_WORKERS="1") as running:
        with (tmp_path / "autoscale.log").open("w") as log:
            running.processes["autoscale"] = start(
                AUTOSCALE_COMMAND, output=log, environment=running.environment
            )

        def num_workers() -> int:
            (row,) = running.sql("SELECT count(*) FROM workers WHERE queue = 'gpu'")
            return int(row[0])

        def run_one() -> None:
            # With more slack the second would wait longer: by then the speed of a worker is known.
            batch = running.submit(
                prompts=["a", "b"], max_tokens=8, ignore_eos=True, completion_window="150s"
            )
            assert running.wait_for(batch)["status"] == "completed"
            assert num_workers() == 1

        assert num_workers() == 0
        run_one()
        eventually(lambda: num_workers() == 0, seconds=300, what="no worker")
        (decision,) = running.client.get("/v1/autoscale").json()["data"]
        assert (decision["wanted"], decision["requests"]) == (0, 0)
        assert decision["cold_start_seconds"] > 0
        run_one()
        assert running.stop("autoscale") == 0
        assert num_workers() == 0
