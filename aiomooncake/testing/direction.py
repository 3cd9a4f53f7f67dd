"""One direction of a `FaultProxy`: the controls that a test turns, and the tasks that move the bytes."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tasks import Changes

__all__ = ["Direction", "Lane", "Queue"]

# What a connection queues in one direction before its reading stops, so that holding pushes back in the end.
_MAX_QUEUED = 1 << 20
_READ_SIZE = 1 << 16


class Queue:
    """The bytes of one connection that are on their way in one direction, each with the time when it is due."""

    def __init__(self) -> None:
        self.entries: deque[tuple[float, memoryview]] = deque()  # an empty one: the sender has finished
        self.size = 0


class Direction:
    """Controls and counters of one direction over all connections: `FaultProxy.requests` or `FaultProxy.answers`.

    Controls may be changed at any time; they act on what passes from then on.

    Attributes:
        delay: Seconds from a byte's arrival to its being passed on; 0: none. It costs no throughput.
        chunk_size: Bytes passed on at once, with a turn of the loop after each; 1: byte by byte; None: as they came.
        transform: Called with the bytes of each read, wherever TCP split them; what it returns is passed on instead.
            None: pass on what came.
        received: Bytes that arrived since the start.
        forwarded: Bytes passed on since the start, injected ones included.
    """

    def __init__(self, changes: Changes) -> None:
        self.delay = 0.0
        self.chunk_size: int | None = None
        self.transform: Callable[[bytes], bytes] | None = None
        self.received = 0
        self.forwarded = 0
        self._changes = changes
        self._queues: set[Queue] = set()
        self._held = False
        self._until_cut: int | None = None

    @property
    def queued(self) -> int:
        """Bytes that wait here now."""
        return sum(queue.size for queue in self._queues)

    def hold(self) -> None:
        """Pass nothing on until `release`. What arrives waits; from 1 MiB a connection on, it is not read any more.

        With `requests.hold()` the proxy is a master that accepts connections and says nothing.
        """
        self._held = True

    def release(self) -> None:
        """Pass on what was held, in order, and what follows."""
        self._held = False
        self._changes.announce()

    def cut_after(self, count: int) -> None:
        """Pass `count` more bytes on in this direction, then reset the connection that carried the last of them.

        With 0, the next connection that has something to pass on is reset instead.
        """
        self._until_cut = count

    def inject(self, data: bytes) -> None:
        """Pass on `data`, which nobody sent, on each open connection after what waits there."""
        for queue in self._queues:
            self._put(queue, data)

    async def wait_received(self, count: int) -> None:
        """Wait until `count` bytes or more arrived since the start."""
        await self._changes.wait_until(lambda: self.received >= count)

    async def wait_held(self, count: int = 1) -> None:
        """Wait until `hold` is in force and keeps `count` bytes or more."""
        await self._changes.wait_until(lambda: self._held and self.queued >= count)

    def __repr__(self) -> str:
        held = ", held" if self._held else ""
        return f"<Direction received={self.received} forwarded={self.forwarded} queued={self.queued}{held}>"

    def _put(self, queue: Queue, data: bytes) -> None:
        queue.entries.append((anyio.current_time() + self.delay, memoryview(data)))
        queue.size += len(data)
        self._changes.announce()


class Lane(Direction):
    """The side of a direction that moves the bytes."""

    def open(self) -> Queue:
        """Begin a connection."""
        queue = Queue()
        self._queues.add(queue)
        return queue

    def close(self, queue: Queue) -> None:
        """End a connection; what is queued is lost."""
        self._queues.discard(queue)

    async def read(self, source: socket.socket, queue: Queue) -> None:
        """Queue what arrives, until the sender has finished."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changes.wait_until(lambda: queue.size < _MAX_QUEUED)
            data = await loop.sock_recv(source, _READ_SIZE)
            if not data:
                self._put(queue, b"")
                return
            self.received += len(data)
            if self.transform is not None:
                data = self.transform(data)
            if data:
                self._put(queue, data)
            else:
                self._changes.announce()

    async def write(self, sink: socket.socket, queue: Queue) -> None:
        """Pass on what is queued, until the sender has finished.

        Raises:
            ConnectionResetError: a cut was asked for, and this is where it falls.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._changes.wait_until(lambda: bool(queue.entries) and not self._held)
            due, data = queue.entries[0]
            if due > anyio.current_time():
                await anyio.sleep_until(due)
                continue  # it may have been held meanwhile
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            count, cut = self._take(len(data))
            await loop.sock_sendall(sink, data[:count])
            if count == len(data):
                queue.entries.popleft()
            else:
                queue.entries[0] = (due, data[count:])
            queue.size -= count
            self.forwarded += count
            self._changes.announce()
            if cut:
                raise ConnectionResetError("cut on request")
            if self.chunk_size is not None:
                await anyio.lowlevel.checkpoint()

    def _take(self, available: int) -> tuple[int, bool]:
        """How many bytes to pass on now, and whether to cut after them. Decided before any await: cuts are exact."""
        count = available if self.chunk_size is None else min(available, self.chunk_size)
        if self._until_cut is None:
            return count, False
        count = min(count, self._until_cut)
        self._until_cut -= count
        if self._until_cut:
            return count, False
        self._until_cut = None
        return count, True
