"""Run every client's tests against one deployment with the demo model; the last line is JSON.

`python -m tests.clients [CLIENT...]`. Each client runs in an environment of its own and is not changed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.environments import CLIENTS, python_of
from tests.fixtures.deployment import deployment
from worker.embedded import services
from worker.settings import settings
from worker.up import ROOT

FOLDER = ROOT / "tests" / "clients"
PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "files")
LONGEST_SECONDS = 600  # for the tests of one client
COUNTS = re.compile(r"(\d+) (passed|failed|errors?)")


def run(client: str, url: str) -> dict[str, int]:
    """Run a client's tests; return how many passed and failed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON"))}
    done = subprocess.run(
        [
            python_of(client), "-m", "pytest", "-q", "-c", FOLDER / "pytest.ini", "--rootdir", ROOT,
            "--confcutdir", FOLDER, "-p", "no:cacheprovider", FOLDER / f"test_{client}.py",
        ],
        cwd=ROOT,
        env=kept | {"HEADRACE_CLIENTS_URL": url, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    counts = {kind: int(number) for number, kind in COUNTS.findall(last)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    if done.returncode and not failed:
        failed = 1
    print(f"{client} ({', '.join(CLIENTS[client])}): {last}", flush=True)
    if failed:
        print(done.stdout, flush=True)
    return {"passed": counts.get("passed", 0), "failed": failed}


def main() -> int:
    """Run the deployment and the clients; the status is 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(CLIENTS))
    chosen = parser.parse_args().clients or list(CLIENTS)
    for client in chosen:
        python_of(client)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    total = {"passed": 0, "failed": 0}
    with tempfile.TemporaryDirectory(prefix="headrace-clients-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        directory.chmod(0o755)  # Postgres may run as another user
        given = {"HEADRACE_DATA_DIR": str(directory / "data")}
        with services(given) as added:
            os.environ.update(given | added)
            settings.cache_clear()
            with deployment(directory, ROOT / "models" / "demo", processes=PROCESSES) as running:
                for client in chosen:
                    for kind, number in run(client, str(running.client.base_url)).items():
                        total[kind] += number
    print(json.dumps({"clients": len(chosen), **total}))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
