"""A TCP proxy on loopback that holds, delays, splits, corrupts and cuts what passes through it.

A connection through it has two directions, and each direction two tasks: one queues what arrives, one passes it on.
Every control belongs to a `Direction`, which all connections share. Every change of state wakes whoever waits for one,
so tests can wait for what they mean instead of sleeping.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from .direction import Lane
from .tasks import Changes, leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from typing_extensions import Self, TypeVarTuple, Unpack

    from .direction import Direction

    Args = TypeVarTuple("Args")

__all__ = ["FaultProxy"]

_BACKLOG = 128
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds


class _Connection:
    """A client's socket and the one towards the target that belongs to it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.target = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._scope: anyio.CancelScope | None = None
        self._ended = False
        self._reset = False
        for sock in (self.client, self.target):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def end(self, *, reset: bool) -> None:
        self._ended = True
        self._reset = self._reset or reset
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, requests: Lane, answers: Lane, target_address: tuple[str, int]) -> None:
        """Carry bytes both ways until both sides have finished, one of them fails, or `end` is called."""
        loop = asyncio.get_running_loop()
        upward, downward = requests.open(), answers.open()
        try:
            with anyio.CancelScope() as self._scope:
                if not self._ended:
                    await self._guard(loop.sock_connect, self.target, target_address)
                if self._ended:
                    return
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._guard, requests.read, self.client, upward)
                    tasks.start_soon(self._guard, requests.write, self.target, upward)
                    tasks.start_soon(self._guard, answers.read, self.target, downward)
                    tasks.start_soon(self._guard, answers.write, self.client, downward)
        finally:
            requests.close(upward)
            answers.close(downward)
            self.close()

    async def _guard(self, work: Callable[[Unpack[Args]], Awaitable[None]], *args: Unpack[Args]) -> None:
        try:
            await work(*args)
        except OSError:  # what one side suffers, the other side is told
            self.end(reset=True)

    def close(self) -> None:
        for sock in (self.client, self.target):
            with suppress(OSError):
                if self._reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()


class FaultProxy:
    """A TCP proxy on loopback towards one target, with faults on command.

        async with FaultProxy("127.0.0.1", 50051) as proxy, aiomooncake.connect(proxy.address) as engine:
            proxy.answers.hold()
            ...
            await proxy.answers.wait_held()
            await proxy.cut()

    It serves any number of connections, each with its own connection to the target, and keeps its address while it
    refuses. Use it from the event loop that entered it. Leaving closes every connection. A target that does not
    accept shows as a connection that is accepted and then reset.

    Attributes:
        accepted: Connections accepted since the start.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.accepted = 0
        self._target = (target_host, target_port)
        self._changes = Changes()
        self._requests = Lane(self._changes)
        self._answers = Lane(self._changes)
        self._connections: set[_Connection] = set()
        self._listener: socket.socket | None = None

    @property
    def requests(self) -> Direction:
        """What clients send to the target."""
        return self._requests

    @property
    def answers(self) -> Direction:
        """What the target sends to clients."""
        return self._answers

    @property
    def address(self) -> str:
        """Where clients connect: "127.0.0.1:PORT"."""
        host, port = self._reserved.getsockname()
        return f"{host}:{port}"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        # Bound but never listening: keeps the port ours, and refusing, while there is no listener.
        self._reserved = _bind("127.0.0.1", 0)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()
        try:
            await leave(self._tasks, error)
        finally:
            for connection in self._connections:  # those whose task was cancelled before it began
                connection.close()
            self._reserved.close()

    def refuse(self) -> None:
        """Refuse new connections, the way a port does on which nobody listens. Open ones go on."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def resume(self) -> None:
        """Accept connections again, on the same address."""
        if self._listener is None:
            self._listener = _bind(*self._reserved.getsockname())
            self._listener.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def cut(self) -> None:
        """Reset all open connections, both sides; what is queued is lost. Returns when they are gone."""
        await self._end_all(reset=True)

    async def hang_up(self) -> None:
        """Close all open connections in an orderly way; what is queued is lost. Returns when they are gone."""
        await self._end_all(reset=False)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever bytes move or connections come and go."""
        await self._changes.wait_until(condition)

    def __repr__(self) -> str:
        return f"<FaultProxy accepted={self.accepted} open={self.open} requests={self.requests} answers={self.answers}>"

    async def _end_all(self, *, reset: bool) -> None:
        ending = set(self._connections)
        for connection in ending:
            connection.end(reset=reset)
        await self._changes.wait_until(lambda: ending.isdisjoint(self._connections))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # the client may have gone again
            client, _ = listener.accept()
            connection = _Connection(client)
            self.accepted += 1
            self._connections.add(connection)
            self._tasks.start_soon(self._serve, connection)
            self._changes.announce()

    async def _serve(self, connection: _Connection) -> None:
        try:
            await connection.run(self._requests, self._answers, self._target)
        finally:
            self._connections.discard(connection)
            self._changes.announce()


def _bind(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
