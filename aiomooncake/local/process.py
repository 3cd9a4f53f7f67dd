"""A child process that ends with its parent, whatever ends the parent."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

    from .log import ProcessLog

__all__ = ["GuardedProcess"]

_GUARD = Path(__file__).with_name("_guard_main.py")

# Processes are polled: a callback of the loop would tie them to one loop, and would miss the end of a process that
# another task has reaped.
_POLL_INTERVAL = 0.001


class GuardedProcess:
    """`command`, run below a guard process that kills it when this process ends (see `_guard_main.py`).

    Making one, `kill` and `reap` do not await, so cancellation cannot come between a process and its owner. The owner
    has to call `reap` in the end. A Ctrl-C in the terminal does not reach the command.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: ProcessLog,
        environment: Mapping[str, str],
        stdin: socket.socket | None = None,
    ) -> None:
        self._pid: int | None = None
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-IS", str(_GUARD), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL if stdin is None else stdin.fileno(),
                stdout=theirs.fileno(),
                stderr=log.fileno(),
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        """The command's process id; None before the guard has started it."""
        if self._pid is None:
            with contextlib.suppress(OSError):  # nothing there yet, or closed by `reap`
                line = self._control.recv(64)
                self._pid = int(line) if line else None
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the command, or the guard that is about to start it, is alive."""
        return self._guard.poll() is None

    async def started(self) -> bool:
        """Wait until the command has a pid; False when there will never be one."""
        while self.pid is None and self.running:
            await anyio.sleep(_POLL_INTERVAL)
        return self.pid is not None

    async def wait(self) -> None:
        """Wait until the command has ended. It is not killed for that; cancelling leaves it as it is."""
        while self.running:
            await anyio.sleep(_POLL_INTERVAL)

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal the command; False when it does not run."""
        pid = self.pid
        if pid is None or not self.running:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Have the command killed, also one that is stopped or not yet started; `wait` tells when it is done."""
        with contextlib.suppress(OSError):  # the guard is gone, so the command is
            self._control.shutdown(socket.SHUT_WR)

    def reap(self) -> None:
        """Kill the command unless it has ended, wait for that without the loop, and free what the system holds."""
        self.kill()
        self._guard.wait()
        self._control.close()
