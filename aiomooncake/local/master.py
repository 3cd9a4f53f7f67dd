"""One `mooncake_master` on loopback: its ports, its process, its admin HTTP."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import anyio

from ..errors import AioMooncakeError, ClosedError, ConfigError, ConnectError
from .install import suggest_cure
from .ports import ReservedPort
from .probe import admin_get, is_serving
from .process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .install import Installation
    from .log import ProcessLog

__all__ = ["Master"]

_START_POLL_INTERVAL = 0.01
_PROBE_TIMEOUT = 1.0
_ADMIN_TIMEOUT = 5.0
_PORT_ATTEMPTS = 5


class Master:
    """It keeps its ports between one `start` and the next. The owner has to call `close` in the end."""

    def __init__(self, installation: Installation, options: Sequence[str], log: ProcessLog) -> None:
        self._installation = installation
        self._options = options
        self._log = log
        self._ports = (ReservedPort(), ReservedPort())
        self._process: GuardedProcess | None = None
        self._closed = False
        self.is_stopped = False

    @property
    def address(self) -> str:
        """`host:port` of its RPC."""
        return f"127.0.0.1:{self._ports[0].number}"

    @property
    def admin_address(self) -> str:
        """`host:port` of its admin HTTP."""
        return f"127.0.0.1:{self._ports[1].number}"

    @property
    def pid(self) -> int | None:
        """Its process id; None when it does not run."""
        return self._process.pid if self._process is not None and self._process.running else None

    async def start(self) -> None:
        """Start it and wait until it serves; first kill the one that runs. It may hang: bound it.

        Raises:
            ConfigError: it cannot run on this system.
            ConnectError: it ended at once.
            ClosedError: `close` was called, before or meanwhile.
        """
        first_time = self._process is None
        for _ in range(_PORT_ATTEMPTS if first_time else 1):
            if not self._closed and await self._try_start():
                return
            if self._closed or all(port.is_free() for port in self._ports):
                break
            if first_time:  # somebody took a port between our look and the master's
                self._release_ports()
                self._ports = (ReservedPort(), ReservedPort())
        raise self._why_it_ended()

    async def _try_start(self) -> bool:
        """Whether it came to serve; False when it ended instead."""
        self.reap()
        rpc_port, admin_port = (port.number for port in self._ports)
        self.is_stopped = False
        self._process = process = GuardedProcess(
            [
                str(self._installation.master),
                f"--rpc_port={rpc_port}",
                "--rpc_address=127.0.0.1",
                f"--metrics_port={admin_port}",
                "--metrics_host=127.0.0.1",
                "--undefok=metrics_host",  # masters up to 0.3.11 do not know it
                *self._options,
            ],
            log=self._log,
            environment=self._installation.environment,
        )
        if not await process.started():
            return False
        while process.running:
            with anyio.move_on_after(_PROBE_TIMEOUT):
                if await is_serving(rpc_port) and await self._admin_answers() and process.running:
                    return True
            await anyio.sleep(_START_POLL_INTERVAL)
        return False

    async def _admin_answers(self) -> bool:
        try:
            await self.admin_get("/health")
        except OSError:
            return False
        return True

    def _why_it_ended(self) -> AioMooncakeError:
        if self._closed:
            return ClosedError(f"the cluster at {self.address} was closed while its master started")
        complaint = self._log.text()
        message = f"{self._installation.master} ended instead of serving at {self.address}"
        cure = suggest_cure(complaint)
        if cure is not None:
            return ConfigError(f"{message}: {cure}; {self._log.tail()}")
        return ConnectError(f"{message}; {self._log.tail()}")

    async def admin_get(self, path: str) -> bytes:
        """The body of a page of the admin HTTP.

        Raises:
            OSError: it did not answer within 5 s, or not with 200.
        """
        return await admin_get(self._ports[1].number, path, timeout=_ADMIN_TIMEOUT)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it.

        Raises:
            ConnectError: it does not run.
        """
        if self._process is None or not self._process.send_signal(number):
            raise ConnectError(f"no master runs at {self.address}; `restart_master` starts one")
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.is_stopped = number == signal.SIGSTOP

    async def end(self, number: signal.Signals) -> None:
        """Signal it and wait for its end. Nothing happens when it does not run."""
        if self._process is not None:
            with contextlib.suppress(ConnectError):
                self.send_signal(number)
                self.send_signal(signal.SIGCONT)  # one that is stopped takes no other signal than SIGKILL
            await self._process.wait()

    def kill(self) -> None:
        """Have it killed, without waiting."""
        if self._process is not None:
            self._process.kill()

    async def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            await self._process.wait()

    def reap(self) -> None:
        """Kill it and wait for that without the loop. May be called again."""
        if self._process is not None:
            self._process.reap()

    def refuse_to_start(self) -> None:
        """Let a start that is under way, and every later one, raise ClosedError."""
        self._closed = True

    def close(self) -> None:
        """Kill it, let go of its ports and refuse to start it again. May be called again."""
        self.refuse_to_start()
        self.reap()
        self._release_ports()

    def _release_ports(self) -> None:
        for port in self._ports:
            port.release()
