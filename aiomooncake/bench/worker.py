"""The load generator: a process with one client, its event loop, and a channel on which it is told what to measure.

    python -m aiomooncake.bench.worker {"client": NAME, "master": HOST:PORT, "loop": LOOP, "options": {...}}

stdin is a socket. The process sends a line of JSON when its client is connected: null, or why that failed. Then it
answers each line {"run": NAME, ...} with a line {"result": ...}. A replay pauses after lines {"answered": [[NUMBER,
PAGES FOUND], ...]} until it gets a line, when those requests are stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import uvloop

from ..errors import AioMooncakeError
from . import replay
from .arrivals import poisson
from .clients import KINDS
from .closedloop import run_closed_loop
from .histogram import recorded
from .load import KeyLoad, PromptLoad
from .openloop import run_open_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .clients import Ask, Client
    from .observer import Observation
    from .openloop import OpenLoop

__all__ = ["main"]


def main() -> None:
    """Be the process: answer until the other end closes."""
    channel = socket.socket(fileno=os.dup(0))
    config = json.loads(sys.argv[1])
    # Made here and not by a runner: that would wait for the default executor, whose threads may hang in a call.
    loop = uvloop.new_event_loop() if config["loop"] == "uvloop" else asyncio.new_event_loop()
    loop.run_until_complete(_serve(channel, **config))
    os._exit(0)  # closing takes the official client seconds, and nobody is left to care


async def _serve(channel: socket.socket, *, client: str, master: str, options: dict[str, Any], loop: str) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=1 << 26)

    def send(message: object) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    try:
        opened = KINDS[client].open(master, options)
        generator = _Generator(await opened.__aenter__(), send, reader)
    except (AioMooncakeError, ImportError, OSError) as error:
        send(f"{type(error).__name__}: {error}")
        await writer.drain()
        return
    send(None)
    runs: dict[str, Callable[..., Awaitable[object]]] = {
        "closed": generator.closed,
        "open": generator.open,
        "replay": generator.replay,
        "answers": generator.answers,
    }
    while line := await reader.readline():
        request = json.loads(line)
        send({"result": await runs[request.pop("run")](**request)})


class _Generator:
    def __init__(self, client: Client, send: Callable[[object], None], reader: asyncio.StreamReader) -> None:
        self._client = client
        self._send = send
        self._reader = reader
        self._asks = lru_cache(maxsize=2)(lambda load: load.asks(client))

    async def closed(self, *, load: dict[str, Any], seconds: float, warm_up: float) -> dict[str, Any]:
        ran = await run_closed_loop(self._asks(_load(load)), seconds=seconds, warm_up=warm_up)
        return {
            "lookups": ran.lookups,
            "latency": recorded(ran.latencies),
            "achieved": len(ran.latencies) / ran.observation.seconds,
            **_observed(ran.observation, len(ran.latencies)),
        }

    async def open(
        self, *, load: dict[str, Any], rate: float, seconds: float, warm_up: float, deadline: float, seed: int
    ) -> dict[str, Any]:
        arrivals = poisson(rate, warm_up + seconds, seed=seed)
        return _opened(await run_open_loop(self._asks(_load(load)), arrivals, warm_up=warm_up, deadline=deadline))

    async def replay(self, *, part: dict[str, Any], deadline: float) -> dict[str, Any]:
        requests = replay.Part(**part)
        asks = requests.asks(self._client)
        found = [0] * len(asks)
        answered: list[tuple[int, int]] = []

        def noting(number: int, ask: Callable[[], Awaitable[int]]) -> Ask:
            async def note() -> None:
                found[number] = await ask()
                answered.append((number, found[number]))

            return note

        async def have_stored() -> None:
            self._send({"answered": answered})
            answered.clear()
            await self._reader.readline()

        arrivals = requests.arrivals()
        warm_up = float(arrivals[requests.warm_up])
        ran = await run_open_loop(
            [noting(number, ask) for number, ask in enumerate(asks)],
            arrivals,
            warm_up=warm_up,
            deadline=deadline,
            pauses=requests.pauses(),
            pause=have_stored,
        )
        return {**_opened(ran), "ideal_keys": requests.ideal_keys(found)}

    async def answers(self, *, load: dict[str, Any]) -> list[int]:
        """What each prompt is answered, for the comparison of contenders."""
        return [await ask() for ask in PromptLoad(**load).asks(self._client)]


def _load(arguments: dict[str, Any]) -> KeyLoad | PromptLoad:
    return PromptLoad(**arguments) if "layout" in arguments else KeyLoad(**arguments)


def _opened(ran: OpenLoop) -> dict[str, Any]:
    return {
        "lookups": ran.lookups,
        "latency": recorded(ran.latencies),
        "timeouts": ran.timeouts,
        "errors": ran.errors,
        "offered": ran.offered,
        "achieved": ran.achieved,
        "outstanding": ran.outstanding,
        **_observed(ran.observation, len(ran.latencies)),
    }


def _observed(observation: Observation, measured: int) -> dict[str, Any]:
    return {
        "measured": measured,
        "seconds": observation.seconds,
        "cpu_per_lookup": observation.cpu_seconds / measured,
        "gc_seconds": observation.gc_seconds,
        "gc_runs": observation.gc_runs,
        "lag": observation.lag,
    }


if __name__ == "__main__":
    main()
