"""Runs `headrace` as `python -m api.cli`."""

from api.cli.main import main

if __name__ == "__main__":
    main()
