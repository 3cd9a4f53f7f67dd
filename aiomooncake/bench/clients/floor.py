"""Somebody who does nothing but ask: the floor under every client.

Requests are built beforehand, and answers are only waited for, not decoded.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from .base import KeysOnly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from .base import Ask

__all__ = ["BULK_KEYS", "LoopFloor", "RawSocket", "batch_exist_request", "loop_floor", "raw_socket"]

BULK_KEYS = 4096
"""Keys in one frame; questions with more are sent as several frames, one after the other."""

# Recorded from the official client (masters 0.3.12 and newer): BatchExistKey(["hello"], "default"), up to its count.
_HEADER = struct.Struct("<BBBBIIII")
_BATCH_EXIST_KEY = 0xB89FA6B0
_TYPES = bytes.fromhex("638df700"), bytes.fromhex("fd84800c800cff00")
_META = {1: b"\x04", 2: b"\x0c"}  # by the width of a length
_ANSWER_HEADER = 16


def batch_exist_request(keys: Sequence[str], tenant: str = "default") -> bytes:
    """The frame that asks for `keys`, each of fewer than 65,536 bytes, and fewer keys than that."""
    items = [key.encode() for key in keys]
    width = 1 if max(len(items), *map(len, items), len(tenant)) < 256 else 2

    def sized(data: bytes) -> bytes:
        return len(data).to_bytes(width, "little") + data

    body = _TYPES[0] + _META[width] + _TYPES[1] + len(items).to_bytes(width, "little")
    body += b"".join(map(sized, items)) + sized(tenant.encode())
    return _HEADER.pack(0x15, 0, 0, 0, 0, _BATCH_EXIST_KEY, len(body), 0) + body


class LoopFloor(KeysOnly, asyncio.Protocol):
    """A bare protocol: one write and one future a question. One connection, one question at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the one method that is needed."""
        self._write = cast("asyncio.Transport", transport).write  # uvloop's is no subclass

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`; at most BULK_KEYS keys."""
        return partial(self.ask, batch_exist_request(keys))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Send the request; done when the whole answer is there."""
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._write(request)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        """Settle the question once the length that its answer announces is there."""
        answer = self._answer + data if self._answer else data
        if len(answer) < _ANSWER_HEADER or len(answer) < _ANSWER_HEADER + int.from_bytes(answer[8:12], "little"):
            self._answer = answer
            return
        self._answer = b""
        if answer[2]:
            self._waiter.set_exception(RuntimeError(f"the master answered RPC error {answer[2]}: {answer[16:]!r}"))
        else:
            self._waiter.set_result(None)


class RawSocket(KeysOnly):
    """A blocking socket that sends prepared requests."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(1 << 20))

    def bind(self, keys: list[str]) -> Ask:
        """See `Client`."""
        requests = [batch_exist_request(keys[start : start + BULK_KEYS]) for start in range(0, len(keys), BULK_KEYS)]
        return partial(self.ask, requests[0]) if len(requests) == 1 else partial(self.ask_all, requests)

    def ask_all(self, requests: Sequence[bytes]) -> None:
        """Ask one request after the other."""
        for request in requests:
            self.ask(request)

    def ask(self, request: bytes) -> None:
        """Send the request and wait for the whole answer."""
        self._socket.sendall(request)
        have, need = 0, _ANSWER_HEADER
        while have < need:
            got = self._socket.recv_into(self._buffer[have:])
            if not got:
                raise RuntimeError("the master closed the connection")
            have += got
            if have >= _ANSWER_HEADER:
                need = _ANSWER_HEADER + int.from_bytes(self._buffer[8:12], "little")
        if self._buffer[2]:
            raise RuntimeError(f"the master answered RPC error {self._buffer[2]}: {bytes(self._buffer[16:have])!r}")


@asynccontextmanager
async def loop_floor(master: str) -> AsyncIterator[LoopFloor]:
    """A connection of the running loop."""
    host, _, port = master.rpartition(":")
    transport, protocol = await asyncio.get_running_loop().create_connection(LoopFloor, host, int(port))
    try:
        yield protocol
    finally:
        transport.abort()


@contextmanager
def raw_socket(master: str) -> Iterator[RawSocket]:
    """A blocking connection."""
    host, _, port = master.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield RawSocket(sock)
