"""Run a command that cannot outlive the process that asked for it. A script; nobody imports it.

    python -IS _guard_main.py PARENT_PID COMMAND [ARGUMENT...]

stdin goes to the command untouched; stderr takes the stdout and stderr of the command. stdout is a socket to the
parent: the pid of the command goes out on it, and when the parent shuts it down, the command is killed.

Why a process of its own: PR_SET_PDEATHSIG alone follows the parent's *thread*, and the end of a pipe alone is not
seen as long as a fork of the parent holds the other end. A pidfd has neither flaw.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Run the command to its end or the parent's, whichever comes first; the exit status is the command's."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    parent_fd = os.pidfd_open(parent)
    guard = os.getpid()
    if os.getppid() != parent:  # it died before it was watched, and its number may be somebody else's by now
        return 1
    child = os.fork()
    if child == 0:
        _become(command, guard)
    try:
        os.close(0)  # the command's alone: its peer has to see the end of it
        child_fd = os.pidfd_open(child)
        os.write(1, b"%d\n" % child)
        events = select.poll()
        for fd in (1, parent_fd, child_fd):
            events.register(fd, select.POLLIN)
        events.poll()
    finally:
        os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still the command's
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) % 256


def _become(command: list[str], guard: int) -> NoReturn:
    try:
        # For a guard that is killed itself. This process has one thread, so the signal means what it says.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            os.dup2(2, 1)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
            os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main())
