"""Mooncake's own async client under the demo's load, in a process of its own.

Its `setup` and `close` keep the GIL for up to seconds, its threads would disturb what is measured next to them, and a
Ctrl-C must not wait for any of that.

    python -m aiomooncake.cli.official MASTER CALLERS KEYS

stdin is a socket. The process sends a line of JSON when it has joined the master: null, or why it could not. Then it
answers each line [FUNCTION OF load.py, ARGUMENT...] with a line that has the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvloop

from ..errors import ConfigError, ConnectionLostError
from ..local.log import ProcessLog
from ..local.process import GuardedProcess
from .load import all_at_once, make_questions, one_at_a_time, over_and_over

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from .load import Ask

__all__ = ["OfficialClient", "main"]

# More than any answer has: the samples of one slice, or the answers of all callers.
_LINE_LIMIT = 1 << 30
# The client wants memory of its own even for asking; nothing is stored in it.
_MEMORY_BYTES = 16 << 20


class OfficialClient:
    """The demo's end of it: starts the process when entered, and has it killed when left."""

    def __init__(self, master: str, callers: int, keys: int) -> None:
        """Ask `master` what `load.make_questions(callers, keys)` makes."""
        self._arguments = [master, str(callers), str(keys)]

    async def __aenter__(self) -> Self:
        """Start it, without waiting until it can be asked.

        Raises:
            OSError: there are no processes or files left to start it with.
        """
        self._log = ProcessLog()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = GuardedProcess(
                [sys.executable, "-m", __name__, *self._arguments],
                log=self._log,
                environment={"MC_LOG_LEVEL": "ERROR", **os.environ},
                stdin=theirs,
            )
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.transport.abort()
        self._end()

    def _end(self) -> None:
        self._process.reap()
        self._log.close()

    async def joined(self) -> None:
        """Wait until it has joined the master; first of all, and once.

        Raises:
            ConfigError: it cannot be used here.
            ConnectionLostError: it ended instead.
        """
        reason = await self._receive()
        if reason is not None:
            raise ConfigError(f"Mooncake's own async client cannot be used here: {reason}")

    async def all_at_once(self) -> list[list[int]]:
        """See `load.all_at_once`."""
        answers: list[list[int]] = await self._call("all_at_once")
        return answers

    async def over_and_over(self, seconds: float) -> tuple[list[float], float]:
        """See `load.over_and_over`."""
        samples, elapsed = await self._call("over_and_over", seconds)
        return samples, elapsed

    async def one_at_a_time(self, seconds: float) -> list[float]:
        """See `load.one_at_a_time`."""
        samples: list[float] = await self._call("one_at_a_time", seconds)
        return samples

    async def _call(self, function: str, *arguments: float) -> Any:
        self._writer.write(json.dumps([function, *arguments]).encode() + b"\n")
        return await self._receive()

    async def _receive(self) -> Any:
        line = await self._reader.readline()
        if not line:
            raise ConnectionLostError(f"Mooncake's own async client ended unasked; {self._log.tail()}")
        return json.loads(line)


def main() -> None:
    """Be the process: answer until the other end closes."""
    channel = socket.socket(fileno=os.dup(0))
    master, callers, keys = sys.argv[1:]
    uvloop.run(_serve(channel, master, make_questions(int(callers), int(keys))))
    os._exit(0)  # closing takes the client seconds, and nobody is left to care


async def _serve(channel: socket.socket, master: str, questions: list[list[str]]) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=channel)

    def send(message: object) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    try:
        ask = _join(master)
    except (ImportError, RuntimeError) as error:
        send(str(error))
        await writer.drain()
        return
    send(None)
    functions: dict[str, Any] = {f.__name__: f for f in (all_at_once, over_and_over, one_at_a_time)}
    while line := await reader.readline():
        name, *arguments = json.loads(line)
        send(await functions[name](ask, questions, *arguments))


def _join(master: str) -> Ask:
    from mooncake.async_store import MooncakeDistributedStoreAsync

    store = MooncakeDistributedStoreAsync()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", _MEMORY_BYTES, _MEMORY_BYTES, "tcp", "", master)
    if code:
        raise RuntimeError(f"its setup() returned {code}")
    ask: Ask = store.async_batch_is_exist
    return ask


if __name__ == "__main__":
    main()
