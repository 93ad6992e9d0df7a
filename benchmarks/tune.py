"""Searches the engine's settings for a workload, as `headrace tune`: `python -m benchmarks.tune`."""

import typer

from api.cli.commands.tune import tune

if __name__ == "__main__":
    typer.run(tune)
