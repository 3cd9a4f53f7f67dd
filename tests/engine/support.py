"""What the tests of the engine share: callers that note how they ended, and a master that is told how to misbehave."""

from __future__ import annotations

import asyncio
import struct
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio
import numpy as np

import aiomooncake as am
from aiomooncake.errors import AioMooncakeError, ConnectError, ConnectionLostError
from aiomooncake.testing import FaultProxy, ScriptedPeer
from aiomooncake.wire.messages import SERVICE_READY

from ..wire import naive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
    from typing import Any

    from aiomooncake.local import LocalCluster

    from ..conftest import SharedCluster

T = TypeVar("T")

# Nothing here takes this long unless it hangs.
HANG = 30.0

READY = naive.header(naive.VERSION, 1, debug=True) + b"\1\0052.0.0"


def new_keys(count: int) -> list[str]:
    """Keys that nobody else uses."""
    mark = uuid.uuid4().hex
    return [f"{mark}-{number}" for number in range(count)]


async def outcome(question: Awaitable[T]) -> T | AioMooncakeError:
    """How a question ended; cancellation and what is nobody's fault but ours are raised."""
    try:
        return await question
    except AioMooncakeError as error:
        return error


async def outcomes(questions: Iterable[Awaitable[T]]) -> list[T | AioMooncakeError]:
    """How they ended when asked all at once, in their order."""
    with anyio.fail_after(HANG):
        return list(await asyncio.gather(*map(outcome, questions)))


def plain(answer: object) -> object:
    """An answer that can be compared: arrays as lists."""
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


async def answer_soon(engine: am.Engine, key: str) -> bool:
    """The first answer that the engine gets for `key`, asked again and again while the master is away."""
    with anyio.fail_after(HANG):
        while isinstance(found := await outcome(engine.exists(key)), (ConnectError, ConnectionLostError)):
            await anyio.sleep(0.005)
    if isinstance(found, AioMooncakeError):
        raise found
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the loop or another process will bring about."""
    with anyio.fail_after(HANG):
        while not condition():
            await anyio.sleep(0.001)


async def freeze(cluster: LocalCluster) -> None:
    """Stop the master, and wait until each of its threads has stopped: one may be answering still."""
    cluster.stop_master()
    threads = Path(f"/proc/{cluster.master_pid}/task")
    await until(lambda: all("T" in (each / "stat").read_text().rpartition(")")[2][:3] for each in threads.iterdir()))


async def counted(cluster: SharedCluster | LocalCluster) -> tuple[int, int]:
    """BatchExistKey requests and the keys in them, on the master's own counters."""
    metrics = await cluster.metrics()
    return (
        int(metrics["master_batch_exist_key_requests_total"]),
        int(metrics["master_batch_exist_key_items_total"]),
    )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def through_proxy(address: str, **options: Any) -> AsyncIterator[tuple[FaultProxy, am.Engine]]:
    """An engine whose every byte passes through a proxy."""
    async with FaultProxy(*host_and_port(address)) as proxy, am.connect(proxy.address, **options) as engine:
        yield proxy, engine


# ---- a master without a Mooncake ----------------------------------------------------------------------------------


class Request(NamedTuple):
    """One request as a master reads it."""

    seq: int
    function: int
    body: bytes

    @property
    def keys(self) -> list[bytes]:
        """The keys of a BatchExistKey request."""
        count, offset, width = self._start()
        keys = []
        for _ in range(count):
            size = int.from_bytes(self.body[offset : offset + width], "little")
            offset += width
            keys.append(self.body[offset : offset + size])
            offset += size
        return keys

    @property
    def is_handshake(self) -> bool:
        """Whether it is one of the two that are sent before anybody's question."""
        return self.function == SERVICE_READY or self._start()[0] == 0

    def _start(self) -> tuple[int, int, int]:
        has_meta = self.body[0] & 1
        width = 1 << (self.body[4] >> 3 & 3) if has_meta else 1
        offset = 5 if has_meta else 4
        return int.from_bytes(self.body[offset : offset + width], "little"), offset + width, width


async def read_request(reader: asyncio.StreamReader) -> Request:
    _, seq, function, length, _ = struct.unpack("<IIIII", await reader.readexactly(20))
    return Request(seq, function, await reader.readexactly(length))


class Everything:
    """Holds every key."""

    def __contains__(self, key: object) -> bool:
        return True


class FakeMaster:
    """Runs as the script of a ScriptedPeer: answers as a master does, and questions as `misbehave` says, if set.

    `known` are the keys that exist, `codes` those that are answered with an error of the store; `questions` what was
    asked, `writers` one for each connection.
    """

    def __init__(self, known: Container[bytes] | None = None) -> None:
        self.known: Container[bytes] = Everything() if known is None else known
        self.codes: dict[bytes, int] = {}
        self.misbehave: Callable[[Request, asyncio.StreamWriter], Awaitable[None]] | None = None
        self.questions: list[Request] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while not writer.is_closing():
            request = await read_request(reader)
            if not request.is_handshake:
                self.questions.append(request)
                if self.misbehave is not None:
                    await self.misbehave(request, writer)
                    continue
            writer.write(self.answer(request))
            await writer.drain()

    def answer(self, request: Request) -> bytes:
        """The frame that a master answers."""
        if request.function == SERVICE_READY:
            return naive.frame(request.seq, READY)
        answers = [self.codes.get(key, key in self.known) for key in request.keys]
        return naive.frame(request.seq, naive.answer(answers, debug=True))


@asynccontextmanager
async def with_fake_master(
    master: FakeMaster | None = None, **options: Any
) -> AsyncIterator[tuple[FakeMaster, ScriptedPeer, am.Engine]]:
    """An engine that asks a FakeMaster."""
    master = master or FakeMaster()
    async with ScriptedPeer(master) as peer, am.connect(peer.address, **options) as engine:
        yield master, peer, engine


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A script: read everything, say nothing."""
    while await reader.read(65536):
        pass
