"""Start children that die with their parent. Also a script, which runs in the child before its command."""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127  # the status that shells use


def with_parent(
    command: Sequence[str], signum: signal.Signals = signal.SIGKILL, *, user: str | None = None
) -> list[str]:
    """Return a command whose process gets a signal when the thread that starts it ends (on Linux).

    That thread must wait for the child. The child runs as `user`, if given: then this process must be root.
    """
    # -I and a path, not -m: modules beside this file must not shadow the standard library.
    launcher = [sys.executable, "-I", "-S", __file__]
    return [*launcher, str(os.getpid()), str(int(signum)), user or "", *command]


def die_with_parent(signum: signal.Signals) -> None:
    """Ask the kernel to signal this process when its parent ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def _become(user: str) -> None:
    found = pwd.getpwnam(user)
    os.initgroups(user, found.pw_gid)
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)


def _run(parent: str, signum: str, user: str, *command: str) -> int:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the command must not inherit that
        signal.signal(ignored, signal.SIG_DFL)
    if user:
        _become(user)  # first: the kernel clears the parent-death signal when a process switches users
    die_with_parent(signal.Signals(int(signum)))
    if os.getppid() != int(parent):
        return CANNOT_RUN  # the parent died before the signal was set up
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is needed
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
