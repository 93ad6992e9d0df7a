"""Restrict the data directory to its owner: it holds prompts, outputs and secrets."""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

OTHERS = stat.S_IRWXG | stat.S_IRWXO
MAY_LOOK = OTHERS & ~(stat.S_IXGRP | stat.S_IXOTH)  # not execution: Postgres's own user must pass through


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, unless it exists."""
    path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def make_private(directory: Path) -> None:
    """Deny others a directory and everything in it, unless they can neither read nor write it already."""
    if not directory.is_dir() or not directory.stat().st_mode & MAY_LOOK:
        return
    for folder, _, files in os.walk(directory, topdown=False):
        for path in (*(os.path.join(folder, name) for name in files), folder):  # noqa: PTH118 - may be many
            try:
                mode = os.lstat(path).st_mode
                if mode & OTHERS and not stat.S_ISLNK(mode):
                    os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)  # noqa: PTH101 - as above
            except OSError as error:  # the file is gone, or has another owner
                logger.warning("%s is not made private: %s", path, error.strerror)
