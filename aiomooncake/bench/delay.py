"""A proxy that makes the master as far away as real ones are, in a process of its own.

    python -m aiomooncake.bench.delay HOST:PORT

Bytes are passed on in order, each one `delay` seconds after it arrived, in both directions; how many are under way at
once is not limited. Written with blocking calls: event loops round their timers to milliseconds, and a whole
simulated round trip can be a tenth of that. stdin is a socket: the process sends a line with its address, and takes
lines with a new delay, each of which it echoes; it ends with the other end.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import socket
import statistics
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import ConnectionLostError
from ..local.log import ProcessLog
from ..local.process import GuardedProcess
from .clients.floor import raw_socket

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["DelayedMaster", "main"]

_READ_SIZE = 1 << 18
_BUFFER_BYTES = 4 << 20
_PR_SET_TIMERSLACK = 29
_PINGS = 200
_CORRECTIONS = 3


class DelayedMaster:
    """A master behind the proxy. Entering starts it with no delay; `set_round_trip` sets one.

    Args:
        master: HOST:PORT of the real one.

    Attributes:
        address: HOST:PORT of the proxy.
    """

    def __init__(self, master: str) -> None:
        self._master = master

    async def __aenter__(self) -> Self:
        """Start the proxy.

        Raises:
            ConnectionLostError: it ended instead.
        """
        self._log = ProcessLog()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = GuardedProcess(
                [sys.executable, "-m", "aiomooncake.bench.delay", self._master],
                log=self._log,
                environment=os.environ,
                stdin=theirs,
            )
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self.address: str = await self._receive()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.transport.abort()
        self._end()

    async def set_round_trip(self, seconds: float) -> float:
        """Let a question through the proxy take `seconds` longer than without it.

        What is really added is measured, and the delay corrected: the proxy and its wake-ups cost time of their own.

        Returns:
            What is really added, by the median; more than `seconds` when the proxy alone costs more.
        """
        direct = await self._ping(self._master)
        delay, added = seconds / 2, 0.0
        for _ in range(_CORRECTIONS):
            await self._set_delay(delay)
            added = await self._ping(self.address) - direct
            delay = max(0.0, delay + (seconds - added) / 2)
        return added

    async def _ping(self, address: str) -> float:
        return await asyncio.to_thread(_median_latency, address)

    async def _set_delay(self, seconds: float) -> None:
        self._writer.write(json.dumps(seconds).encode() + b"\n")
        await self._receive()

    async def _receive(self) -> str:
        line = await self._reader.readline()
        if not line:
            raise ConnectionLostError(f"the delaying proxy ended; {self._log.tail()}")
        return line.decode().strip()

    def _end(self) -> None:
        self._process.reap()
        self._log.close()


def _median_latency(master: str) -> float:
    samples = []
    with raw_socket(master) as client:
        ask = client.bind(["ping"])
        for _ in range(_PINGS):
            start = time.monotonic()
            ask()
            samples.append(time.monotonic() - start)
    return statistics.median(samples)


class _Direction:
    """Bytes on their way from one socket to another."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.queue: deque[tuple[float, memoryview]] = deque()
        self.ended = False

    def read(self, due: float) -> None:
        """Take in what arrived."""
        try:
            data = self.source.recv(_READ_SIZE)
        except ConnectionError:
            data = b""
        if data:
            self.queue.append((due, memoryview(data)))
        else:
            self.ended = True

    def write(self, now: float) -> bool:
        """Pass on what is due; False when the other side takes no more at the moment."""
        queue = self.queue
        while queue and queue[0][0] <= now:
            due, data = queue[0]
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                return False
            except ConnectionError:
                self.ended = True
                queue.clear()
                return True
            if sent < len(data):
                queue[0] = (due, data[sent:])
            else:
                queue.popleft()
        return True


class _Proxy:
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._delay = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._by_source: dict[socket.socket, _Direction] = {}
        self.port: int = self._listener.getsockname()[1]

    def run(self, channel: socket.socket) -> None:
        """Serve until the channel ends."""
        blocked: list[_Direction] = []
        while True:
            directions = self._by_source.values()
            waiting = [
                direction.queue[0][0] for direction in directions if direction.queue and direction not in blocked
            ]
            timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
            sources = [channel, self._listener, *(d.source for d in directions if not d.ended)]
            readable, _, _ = select.select(sources, [d.sink for d in blocked], [], timeout)
            arrived = time.monotonic()
            for source in readable:
                if source is channel:
                    line = channel.recv(64)
                    if not line:
                        return
                    self._delay = json.loads(line)
                    channel.sendall(line)
                elif source is self._listener:
                    self._accept()
                else:
                    self._by_source[source].read(arrived + self._delay)
            now = time.monotonic()
            blocked = [direction for direction in self._by_source.values() if not direction.write(now)]
            self._close_ended()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        target = socket.create_connection(self._target)
        for sock in (client, target):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._by_source[client] = _Direction(client, target)
        self._by_source[target] = _Direction(target, client)

    def _close_ended(self) -> None:
        for direction in [d for d in self._by_source.values() if d.ended and not d.queue]:
            if self._by_source.pop(direction.source, None) is not None:
                self._by_source.pop(direction.sink, None)
                direction.source.close()
                direction.sink.close()


def main() -> None:
    """Be the process."""
    channel = socket.socket(fileno=os.dup(0))
    # By default the kernel may wake a process 50 us late, to wake several at once.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    host, _, port = sys.argv[1].rpartition(":")
    proxy = _Proxy((host, int(port)))
    channel.sendall(f"127.0.0.1:{proxy.port}\n".encode())
    proxy.run(channel)


if __name__ == "__main__":
    main()
