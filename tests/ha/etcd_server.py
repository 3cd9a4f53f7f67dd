"""A real etcd on loopback, with everything a test wants to do to it."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from aiomooncake.local.log import ProcessLog
from aiomooncake.local.ports import ReservedPort
from aiomooncake.local.process import GuardedProcess
from aiomooncake.target import Address

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["EtcdServer", "etcd_binary"]

_START_LIMIT = 20.0
_POLL_INTERVAL = 0.01


def etcd_binary() -> str | None:
    """The path of etcd; None when it is not installed (Debian's package is called etcd-server)."""
    return shutil.which("etcd")


class EtcdServer:
    """One member on free loopback ports, which it keeps; its data survive `kill` and `start`, but not the exit."""

    def __init__(self) -> None:
        self._ports = (ReservedPort(), ReservedPort())
        self._log = ProcessLog()
        self._folder = tempfile.TemporaryDirectory(prefix="aiomooncake-etcd-")
        self._process: GuardedProcess | None = None
        self.address = Address("127.0.0.1", self._ports[0].number)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it and remove its data."""
        self._reap()
        for port in self._ports:
            port.release()
        self._log.close()
        self._folder.cleanup()

    async def start(self) -> None:
        """Start it, in place of the one that runs, and wait until it answers."""
        binary = etcd_binary()
        assert binary is not None, "etcd is not installed"
        self._reap()
        client_url, peer_url = (f"http://127.0.0.1:{port.number}" for port in self._ports)
        self._process = GuardedProcess(
            [
                binary,
                "--name=only",
                f"--data-dir={Path(self._folder.name, 'data')}",
                f"--listen-client-urls={client_url}",
                f"--advertise-client-urls={client_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=only={peer_url}",
            ],
            log=self._log,
            environment={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
        )
        with anyio.fail_after(_START_LIMIT):
            while not await self._answers():
                assert self._process.running, f"etcd ended; {self._log.tail()}"
                await anyio.sleep(_POLL_INTERVAL)

    async def start_anew(self) -> None:
        """Start it without the data that it had: its revisions begin at 1 again."""
        self._reap()
        shutil.rmtree(Path(self._folder.name, "data"))
        await self.start()

    def kill(self) -> None:
        """End it by SIGKILL and wait for that."""
        self._reap()

    def stop(self) -> None:
        """Freeze it: connections stay and new ones are accepted by the kernel, but nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let one that was stopped go on."""
        self._signal(signal.SIGCONT)

    async def put(self, key: str, value: str | bytes) -> int:
        """Set a key; the revision at which that happened."""
        raw = value.encode() if isinstance(value, str) else value
        return await self._revision_after("kv/put", key=_base64(key.encode()), value=_base64(raw))

    async def delete(self, key: str) -> int:
        """Delete a key; the revision at which that happened."""
        return await self._revision_after("kv/deleterange", key=_base64(key.encode()))

    async def compact(self, revision: int) -> None:
        """Forget what was before `revision`."""
        await self._revision_after("kv/compaction", revision=str(revision), physical=True)

    async def _revision_after(self, method: str, **content: Any) -> int:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=10) as client:
            response = await client.post(f"http://{self.address}/v3/{method}", json=content)
        return int(response.raise_for_status().json()["header"]["revision"])

    async def _answers(self) -> bool:
        try:
            await self._revision_after("kv/range", key=_base64(b"?"))
        except httpx.HTTPError:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.send_signal(number), "etcd does not run"

    def _reap(self) -> None:
        if self._process is not None:
            self._process.reap()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
