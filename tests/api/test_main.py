import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "headrace.example"])
def test_without_keys_the_api_does_not_start_beyond_loopback(host: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "api"],
        env=os.environ | {"HEADRACE_AUTH": "off", "HEADRACE_HOST": host},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "HEADRACE_AUTH=off is for loopback only" in done.stderr
