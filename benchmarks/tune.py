"""Searches the engine's settings for a workload, as `headrace tune`: `python -m benchmarks.tune`."""

import sys

from api.cli.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "tune")
    main()
