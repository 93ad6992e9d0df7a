"""`python -m api.cli`: the same as `headrace`."""

from api.cli.main import main

if __name__ == "__main__":
    main()
