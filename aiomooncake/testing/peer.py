"""A TCP peer on loopback that does what a script says: for clients that have to survive hostile ones."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import anyio

from .tasks import Changes, leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType
    from typing import SupportsIndex

    from typing_extensions import Self

__all__ = ["ScriptedPeer", "reset"]


class _RecordingReader(asyncio.StreamReader):
    """Also keeps what arrives, read by the script or not."""

    def __init__(self, record: Callable[[bytes], None]) -> None:
        super().__init__()
        self._record = record

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        data = bytes(data)
        self._record(data)
        super().feed_data(data)


class ScriptedPeer:
    r"""Accepts connections on loopback and runs `script(reader, writer)` for each, until it returns.

        async def garbage(reader, writer):
            await reader.readexactly(20)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n")

        async with ScriptedPeer(garbage) as peer, aiomooncake.connect(peer.address) as engine: ...

    A connection is closed when its script returns (`reset` ends it harder). A script that ends because the client has
    gone is fine; anything else that it raises is raised by leaving the context. Leaving cancels the running scripts.

    Attributes:
        received: What arrived, one entry a connection in the order of accepting, read by the script or not.
    """

    def __init__(self, script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.received: list[bytearray] = []
        self._script = script
        self._writers: set[asyncio.StreamWriter] = set()
        self._changes = Changes()

    @property
    def address(self) -> str:
        """Where clients connect: "127.0.0.1:PORT"."""
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def wait_received(self, count: int, connection: int = 0) -> bytes:
        """Wait until `count` bytes or more arrived on the connection of that index; return all that arrived on it."""
        received = self.received
        await self._changes.wait_until(lambda: len(received) > connection and len(received[connection]) >= count)
        return bytes(received[connection])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(self._make_protocol, "127.0.0.1", 0)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        try:
            await leave(self._tasks, error)
        finally:
            for writer in self._writers:  # those whose task was cancelled before it began
                writer.transport.abort()

    def _make_protocol(self) -> asyncio.StreamReaderProtocol:
        record = bytearray()

        def keep(data: bytes) -> None:
            record.extend(data)
            self._changes.announce()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.received.append(record)
            self._writers.add(writer)
            self._tasks.start_soon(self._serve, reader, writer)
            self._changes.announce()

        return asyncio.StreamReaderProtocol(_RecordingReader(keep), connected)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            self._writers.discard(writer)
            writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a reset instead of an orderly close; what is not sent yet is lost."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
