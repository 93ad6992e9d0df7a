"""What lies in the data directory is its owner's alone: prompts, outputs, secrets."""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

OTHERS = stat.S_IRWXG | stat.S_IRWXO
MAY_LOOK = OTHERS & ~(stat.S_IXGRP | stat.S_IXOTH)  # passing through, as Postgres's own user must, is no more


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, if it is not there."""
    path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def make_private(directory: Path) -> None:
    """Keep others from a directory and all that is in it; where they cannot look it is left as it is."""
    if not directory.is_dir() or not directory.stat().st_mode & MAY_LOOK:
        return
    for folder, _, files in os.walk(directory, topdown=False):
        for path in (*(os.path.join(folder, name) for name in files), folder):  # noqa: PTH118 - there may be many
            try:
                mode = os.lstat(path).st_mode
                if mode & OTHERS and not stat.S_ISLNK(mode):
                    os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)  # noqa: PTH101 - as above
            except OSError as error:  # it has gone, or is another's
                logger.warning("%s is not made private: %s", path, error.strerror)
