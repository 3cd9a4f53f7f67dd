"""One run: everything is started, harmed, looked at, and ended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

from aiomooncake.errors import (
    AioMooncakeError,
    ConnectError,
    ConnectionLostError,
    OverloadedError,
    RemoteProtocolError,
    RequestTimeout,
)
from aiomooncake.local import LocalCluster
from aiomooncake.testing import FaultProxy

from .callers import Callers
from .faults import Faults
from .model import Model, Universe
from .report import Report, Tally
from .resources import Held, peak_rss
from .seats import CONNECTIONS, Seat
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_chaos"]

# Parts of the run that are warm-up, and between two checkpoints.
_WARM_UP = 0.2
_CHECKPOINTS = 0.1
# Seconds after which a question that has not ended never will: more than its deadline and all attempts together.
_PATIENCE = 30.0
# Seconds for what was given up and sent to be cleared away.
_GRACE = 5.0
_GONE = (RequestTimeout, ConnectError, ConnectionLostError)
# A run has to have seen so many faults a second, for what it says to count.
_KILLS_DUE = 50 / 600
_CONNECTION_FAULTS_DUE = 100 / 600


async def run_chaos(seconds: float, seed: int, on_checkpoint: Callable[[str], None] = lambda line: None) -> Report:
    """Ask and harm a real cluster for so long; `on_checkpoint` gets a line about each checkpoint."""
    loop = asyncio.get_running_loop()
    rng = Random(seed)
    tally = Tally()
    model = Model(Universe())
    previous = loop.get_exception_handler()

    def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tally.unexpected(f"{context['message']}: {context.get('exception')!r}")
        loop.default_exception_handler(context)

    loop.set_exception_handler(on_loop_error)
    try:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(LocalCluster(start_timeout=60.0))
            host, _, port = cluster.address.rpartition(":")
            proxy = await stack.enter_async_context(FaultProxy(host, int(port)))
            seats = _seats(cluster.address, proxy.address, tally, rng)
            for seat in seats:
                await seat.open()
            writer = Writer(cluster, model, Random(rng.random()))
            callers = Callers(model, seats, tally, seed)
            faults = Faults(cluster, proxy, seats, callers, model, writer, tally, rng)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(writer.run)
            tasks.start_soon(callers.run)

            held = []
            start = loop.time()
            due = start + _WARM_UP * seconds
            while (now := loop.time()) < start + seconds:
                await faults.round(now - start)
                if now >= due:
                    held.append(await _checkpoint(callers, seats, proxy, tally))
                    on_checkpoint(f"{now - start:6.0f} s  {tally.asked.total():9,} questions  {held[-1]}")
                    due = now + _CHECKPOINTS * seconds
            waiting = await _rest(callers, seats, proxy, tally)
            held.append(Held.now())
            took = loop.time() - start
            for seat in seats:
                await seat.close()
            tasks.cancel_scope.cancel()
    finally:
        loop.set_exception_handler(previous)
    for seat in seats:
        for leftover in seat.leftovers:
            tally.unexpected(leftover)
    return Report(
        seed=seed,
        seconds=took,
        tally=tally,
        changes=writer.changes,
        engines=sum(seat.opened for seat in seats),
        waiting=waiting,
        held=held,
        peak_rss=peak_rss(),
        kills_due=int(seconds * _KILLS_DUE),
        connection_faults_due=int(seconds * _CONNECTION_FAULTS_DUE),
    )


def _seats(address: str, proxied_address: str, tally: Tally, rng: Random) -> list[Seat]:
    """Two engines behind the proxy, one of which answers failures as misses, and one that asks the master itself."""
    return [
        Seat(
            "through the proxy",
            proxied_address,
            Random(rng.random()),
            may_raise=(*_GONE, RemoteProtocolError),
            on_recovered=tally.recovered,
        ),
        Seat(
            "directly",
            address,
            Random(rng.random()),
            may_raise=(*_GONE, OverloadedError),
            on_recovered=tally.recovered,
            overload="raise",
            max_pending_keys=150_000,
        ),
        Seat(
            "forgiving",
            proxied_address,
            Random(rng.random()),
            may_raise=(),
            on_recovered=lambda name, seconds, after: None,
            errors="miss",
            max_pending_keys=50_000,
        ),
    ]


async def _checkpoint(callers: Callers, seats: list[Seat], proxy: FaultProxy, tally: Tally) -> Held:
    await _rest(callers, seats, proxy, tally)
    held = Held.now()
    callers.resume()
    return held


async def _rest(callers: Callers, seats: list[Seat], proxy: FaultProxy, tally: Tally) -> int:
    """Let everything end that was asked, and all connections stand; return how many questions do not end."""
    await callers.pause(_PATIENCE)
    with anyio.move_on_after(_PATIENCE) as scope:
        for seat in seats:
            engine = await seat.current()
            with anyio.move_on_after(_GRACE):  # before anything is asked, which could set going what is stuck
                while engine.stats().pending_keys or engine.stats().waiting_outside or engine.stats().calls_in_flight:
                    await asyncio.sleep(0.005)
            stats = engine.stats()
            if stats.pending_keys or stats.waiting_outside:
                tally.unexpected(f"{seat.name}: something waits though nobody asks: {stats}")
            while engine.stats().connections_open < CONNECTIONS:
                with suppress(AioMooncakeError):
                    await engine.exists("anything")  # connections are made when there is something to ask
                await asyncio.sleep(0.005)
        proxied = CONNECTIONS * sum(1 for seat in seats if seat.name != "directly")
        await proxy.wait_until(lambda: proxy.open == proxied)
    if scope.cancelled_caught:
        tally.unexpected(f"no rest: {proxy!r}, {[seat.engine.stats() for seat in seats if seat.engine]}")
    return callers.waiting
