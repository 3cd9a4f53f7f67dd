"""How fast the master answers somebody who does nothing but ask: the floor under every client.

Requests are built beforehand and answers are only waited for, not decoded. Three ways:
  loop floor    a bare protocol on uvloop: one write and one future a question
  raw socket    a blocking socket, one key a question
  raw bulk      a blocking socket, frames of 4096 keys one after the other

    python -m benchmarks.floor [--master HOST:PORT]
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, cast

import uvloop

from benchmarks.measure import master_holding, page_keys, side_by_side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

__all__ = ["BULK_KEYS", "LoopFloor", "RawSocket", "batch_exist_request", "loop_floor", "raw_socket"]

BULK_KEYS = 4096

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


class LoopFloor(asyncio.Protocol):
    """One connection, one question at a time."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the one method that is needed."""
        self._write = cast("asyncio.Transport", transport).write  # uvloop's is no subclass

    def ask(self) -> asyncio.Future[None]:
        """Send the request; done when the whole answer is there."""
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._write(self._request)
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


class RawSocket:
    """A blocking socket that sends prepared requests."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(1 << 20))

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

    def keys_per_second(self, keys: Sequence[str]) -> float:
        """Ask for all `keys` once, in frames of 4096 built beforehand, one after the other."""
        requests = [batch_exist_request(keys[start : start + BULK_KEYS]) for start in range(0, len(keys), BULK_KEYS)]
        start = time.perf_counter()
        for request in requests:
            self.ask(request)
        return len(keys) / (time.perf_counter() - start)


@asynccontextmanager
async def loop_floor(master: str, key: str) -> AsyncIterator[LoopFloor]:
    """A connection that asks for `key` from the running loop."""
    host, _, port = master.rpartition(":")
    request = batch_exist_request([key])
    transport, protocol = await asyncio.get_running_loop().create_connection(
        lambda: LoopFloor(request), host, int(port)
    )
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


async def main() -> None:
    keys = page_keys(16 * BULK_KEYS)
    async with master_holding(keys, __doc__) as master:
        request = batch_exist_request(keys[:1])
        with raw_socket(master) as raw:
            async with loop_floor(master, keys[0]) as floor:
                asks = {"loop floor": floor.ask, "raw socket": lambda: raw.ask(request)}
                for name, result in (await side_by_side(asks)).items():
                    print(f"{name}  {result}")
            raw.keys_per_second(keys)
            low, *_, high = rates = sorted(raw.keys_per_second(keys) for _ in range(9))
            print(f"raw bulk    {rates[4] / 1e3:.0f} k keys/s (median of 9; {low / 1e3:.0f} to {high / 1e3:.0f})")


if __name__ == "__main__":
    uvloop.run(main())
