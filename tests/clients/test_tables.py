"""The examples with pandas, DuckDB and Hugging Face's datasets, as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
PRINTS = {
    "pandas_table.py": r"Worth every cent +5 +completed .*\n.*It broke at once +1 +completed ",
    "duckdb_table.py": r"It broke at once.*completed.*\n(.|\n)*\[\('completed', 2, \d+\)\]",
    "datasets_table.py": r"a completed ['\"].*\nb completed ['\"]",
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs(url: str, name: str) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=os.environ | offline | {"HEADRACE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTS[name], done.stdout), done.stdout
