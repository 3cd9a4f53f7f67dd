"""The parent's end of a load generator: starts the process, tells it what to measure, and reads what it found."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ConnectionLostError
from ..local.log import ProcessLog
from ..local.process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from typing_extensions import Self

    from .load import KeyLoad, PromptLoad
    from .replay import Part

__all__ = ["Generator"]

# More than any answer has.
_LINE_LIMIT = 1 << 26


class Generator:
    """A load generator with one client; see `worker`. Entering starts it, leaving has it killed.

    Args:
        client: A name in `clients.KINDS`.
        master: HOST:PORT that it asks.
        loop: "uvloop" or "asyncio".
        options: Engine options, for an engine.
    """

    def __init__(
        self,
        client: str,
        master: str,
        *,
        loop: str = "uvloop",
        options: dict[str, Any] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._config = {"client": client, "master": master, "loop": loop, "options": options or {}}
        self._python = python

    async def __aenter__(self) -> Self:
        """Start it, and wait until its client is connected.

        Raises:
            ConfigError: its client cannot be used here.
            ConnectionLostError: it ended instead.
        """
        self._log = ProcessLog()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = GuardedProcess(
                [self._python, "-m", "aiomooncake.bench.worker", json.dumps(self._config)],
                log=self._log,
                environment={"MC_LOG_LEVEL": "ERROR", **os.environ},
                stdin=theirs,
            )
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
            reason = await self._receive()
            if reason is not None:
                raise ConfigError(f"{self._config['client']} cannot be measured here: {reason}")
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

    async def closed(self, load: KeyLoad | PromptLoad, *, seconds: float, warm_up: float) -> dict[str, Any]:
        """See `closedloop`."""
        return await self._measured("closed", load=asdict(load), seconds=seconds, warm_up=warm_up)

    async def open(
        self, load: KeyLoad | PromptLoad, *, rate: float, seconds: float, warm_up: float, deadline: float, seed: int
    ) -> dict[str, Any]:
        """See `openloop`; arrivals are Poisson's."""
        timing = {"rate": rate, "seconds": seconds, "warm_up": warm_up, "deadline": deadline, "seed": seed}
        return await self._measured("open", load=asdict(load), **timing)

    async def replay(
        self, part: Part, *, deadline: float, store: Callable[[list[tuple[int, int]]], Awaitable[None]]
    ) -> dict[str, Any]:
        """See `replay`; at its pauses `store` gets the numbers of the requests answered, with the pages found."""
        self._store = store
        return await self._measured("replay", part=asdict(part), deadline=deadline)

    async def answers(self, load: PromptLoad) -> list[int]:
        """What each prompt of a load is answered."""
        result: list[int] = await self._run("answers", load=asdict(load))
        return result

    async def _measured(self, run: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self._run(run, **arguments)
        return result

    async def _run(self, run: str, **arguments: Any) -> Any:
        self._writer.write(json.dumps({"run": run, **arguments}).encode() + b"\n")
        while "result" not in (message := await self._receive()):
            await self._store([(number, found) for number, found in message["answered"]])
            self._writer.write(b"\n")
        return message["result"]

    async def _receive(self) -> Any:
        line = await self._reader.readline()
        if not line:
            raise ConnectionLostError(f"the load generator of {self._config['client']} ended; {self._log.tail()}")
        return json.loads(line)
