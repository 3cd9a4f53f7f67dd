"""What does a question cost while the master is away, hangs, or is overrun, and how soon is all well again?

    python -m benchmarks.faults [dead] [back] [failover] [stopped] [queued]

dead        the master was killed: what a question costs that fails
back        the master was restarted: from its port's opening to the first right answer
failover    masters in HA mode, the leader killed under load: the same for the new leader (needs etcd)
stopped     the master hangs (SIGSTOP) for 5 s while 500 callers ask: how long calls take, and how late the loop gets
queued      a million one-key questions wait for a master that hangs: memory that the engine adds to that of the tasks

Each line has its target. Exits with 1 when one was missed. Without names: all, about two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import socket
import statistics
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import numpy as np
import uvloop
from anyio.from_thread import start_blocking_portal

import aiomooncake as am
from aiomooncake.errors import AioMooncakeError, OverloadedError, RequestTimeout
from aiomooncake.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DEAD_QUESTIONS = 10_000
RESTARTS = 10
FAILOVERS = 3
CALLERS = 500
STOPPED_TIMEOUT, STOPPED_SECONDS = 0.5, 5.0
QUEUED = 1_000_000
PENDING_LIMIT = 100_000
_OUTAGE = 1.0  # long enough for the backoff to reach its bound


class Figure(NamedTuple):
    """One measured line."""

    name: str
    value: str
    target: str
    ok: bool


def at_most(name: str, value: float, limit: float, unit: str, scale: float = 1.0) -> Figure:
    return Figure(name, f"{value * scale:.3g} {unit}", f"<= {limit * scale:g} {unit}", value <= limit)


def holds(name: str, value: str, target: str, ok: bool) -> Figure:
    return Figure(name, value, target, ok)


# ---- the master is gone -------------------------------------------------------------------------------------------


async def dead() -> list[Figure]:
    """A dead master costs microseconds a question, not its deadline."""
    async with _master_only() as cluster, am.connect(cluster.address) as engine:
        await engine.exists("a")
        await cluster.kill_master()
        first = await _seconds(_failing(engine))
        start = time.perf_counter()
        for _ in range(DEAD_QUESTIONS):
            await _failing(engine)
        each = (time.perf_counter() - start) / DEAD_QUESTIONS
        start = time.perf_counter()
        await asyncio.gather(*(_failing(engine) for _ in range(DEAD_QUESTIONS)))
        together = (time.perf_counter() - start) / DEAD_QUESTIONS
    return [
        at_most("dead: first question after the kill", first, 0.1, "ms", 1e3),
        at_most(f"dead: each of {DEAD_QUESTIONS} more, one after the other", each, 100e-6, "us", 1e6),
        at_most(f"dead: each of {DEAD_QUESTIONS} more at once", together, 100e-6, "us", 1e6),
    ]


async def back() -> list[Figure]:
    """A master that is back is noticed soon, though it is not asked all the time."""
    waits = []
    # Processes are started and ended from a loop of their own, which that holds up.
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(_master_only()) as cluster:
        async with am.connect(cluster.address) as engine:
            for _ in range(RESTARTS):
                await asyncio.wrap_future(portal.start_task_soon(cluster.kill_master))
                await _failing(engine)
                async with _asking(engine) as calls:
                    await anyio.sleep(_OUTAGE)
                    opening = PortOpening(cluster.address)
                    restarted = portal.start_task_soon(cluster.restart_master)
                    waits.append(await _first_answer(calls, await opening.wait()))
                    await asyncio.wrap_future(restarted)
    return [
        at_most(f"back: first answer after the port opened, median of {RESTARTS}", _median(waits), 0.25, "ms", 1e3),
        at_most("back: the slowest", max(waits), 0.25, "ms", 1e3),
    ]


async def failover() -> list[Figure]:
    """The leader is killed under load; the others take over some 10 s later."""
    from tests.ha.etcd_server import etcd_binary
    from tests.ha.masters import HaMasters

    if etcd_binary() is None:
        print("failover: skipped, as etcd is not installed (Debian: etcd-server)", file=sys.stderr)
        return []
    waits: list[float] = []
    longest = 0.0
    wrong = 0
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(HaMasters()) as masters:
        async with am.connect(masters.target, timeout=1.0) as engine:
            for number in range(FAILOVERS):
                key = f"failover {number}"
                await asyncio.wrap_future(portal.start_task_soon(masters.put, [key]))
                async with _asking(engine, key, callers=200, pause=0.01) as calls:
                    await anyio.sleep(0.5)
                    wrong += sum(call.answer is False for call in calls)
                    old = await asyncio.wrap_future(portal.start_task_soon(masters.kill_leader))
                    opening = PortOpening(str(next(address for address in masters.addresses if address != old)))
                    opened = await opening.wait()
                    waits.append(await _first_answer(calls, opened))
                    await anyio.sleep(0.5)
                    wrong += sum(call.answer is True and call.ended > opened for call in calls)
                longest = max(longest, *(call.ended - call.began for call in calls))
                portal.call(masters.restart, old)
    return [
        at_most(f"failover: first answer after the port opened, median of {FAILOVERS}", _median(waits), 1.0, "ms", 1e3),
        at_most("failover: the slowest", max(waits), 1.0, "ms", 1e3),
        at_most("failover: longest call, at timeout=1.0", longest, 1.1, "s"),
        holds("failover: wrong answers, and answers of the old leader", str(wrong), "0", wrong == 0),
    ]


# ---- the master hangs ---------------------------------------------------------------------------------------------


async def stopped() -> list[Figure]:
    """Calls end at their deadline, and the loop is not held up by them."""
    async with _loop_lag() as idle_lags:
        await anyio.sleep(1)
    async with _master_only() as cluster, am.connect(cluster.address, timeout=STOPPED_TIMEOUT) as engine:
        cluster.stop_master()
        async with _loop_lag() as lags, _asking(engine, callers=CALLERS, pause=0.0) as calls:
            await anyio.sleep(STOPPED_SECONDS)
            cluster.continue_master()
            again = await _first_answer(calls, time.perf_counter())
    hung = [call for call in calls if call.answer is RequestTimeout]
    others = sum(not isinstance(call.answer, bool) for call in calls) - len(hung)
    seconds = [call.ended - call.began for call in hung]
    return [
        # uvloop's clock counts milliseconds.
        holds(f"stopped: shortest of {len(hung)} calls", f"{min(seconds):.3f} s", ">= 0.499 s", min(seconds) >= 0.499),
        at_most("stopped: longest of them", max(seconds), 0.6, "s"),
        holds("stopped: calls that ended by another error", str(others), "0", others == 0),
        at_most("stopped: loop lag, p99", float(np.percentile(lags, 99)), 0.010, "ms", 1e3),
        holds("stopped: that of an idle loop", f"{np.percentile(idle_lags, 99) * 1e3:.3g} ms", "", ok=True),
        at_most("stopped: first answer after it went on", again, 1.0, "ms", 1e3),
    ]


async def queued() -> list[Figure]:
    """Memory for what waits, against tasks that await a bare future; and what the limits do."""
    async with _master_only() as cluster:
        bare = await _queue_in_child(cluster, "bare")
        queue = await _queue_in_child(cluster, "engine")
        outside = await _queue_in_child(cluster, "engine", max_pending_keys=PENDING_LIMIT)
        refusing = await _queue_in_child(cluster, "engine", max_pending_keys=PENDING_LIMIT, overload="raise")
    figures = []
    for name, child in (("queued", queue), (f"beyond max_pending_keys={PENDING_LIMIT}", outside)):
        share = (child.peak - bare.peak) / QUEUED
        figures += [
            at_most(f"queued: the engine's memory a question, {name}", share, 614.4, "KiB", 1 / 1024),
            holds(f"queued: answered, {name}", str(child.answered), str(QUEUED), child.answered == QUEUED),
        ]
    most = max(queue.pending, outside.pending, refusing.pending)
    return [
        holds("queued: memory of a task with a bare future", f"{bare.peak / QUEUED / 1024:.3g} KiB", "", ok=True),
        *figures,
        holds(
            'queued: refused with overload="raise", and answered',
            f"{refusing.refused} + {refusing.answered}",
            f"about {QUEUED - PENDING_LIMIT} + {PENDING_LIMIT}",
            # What was sent before the window was full does not count as waiting.
            refusing.refused + refusing.answered == QUEUED and 0 <= refusing.answered - PENDING_LIMIT <= 20_000,
        ),
        holds("queued: most keys that waited", str(most), f"<= {1 << 20}", most <= 1 << 20),
    ]


class _Child(NamedTuple):
    peak: int  # bytes of memory: for "bare" when everybody waits, otherwise in the end
    answered: int
    refused: int
    pending: int


async def _queue_in_child(cluster: LocalCluster, kind: str, **options: Any) -> _Child:
    command = [sys.executable, "-m", "benchmarks.faults", "--child", kind, cluster.address, json.dumps(options)]
    child = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        await child.stdout.readline()  # connected
        cluster.stop_master()
        child.stdin.write(b"ask\n")
        await child.stdout.readline()  # everybody waits
        cluster.continue_master()
        report = await child.stdout.readline()
        return _Child(**json.loads(report))
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _queue(kind: str, address: str, options: dict[str, Any]) -> None:
    """The child: its memory is that of the tasks and, unless "bare", of what the engine keeps for them."""
    loop = asyncio.get_running_loop()
    keys = [f"key-{number}" for number in range(QUEUED)]

    async def wait() -> bool:
        future: asyncio.Future[bool] = loop.create_future()
        return await future

    async with am.connect(address, timeout=600.0, **options) as engine:
        print(flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        gc.disable()  # it would go through all the tasks again and again, and find nothing
        if kind == "bare":
            tasks = [loop.create_task(wait()) for _ in keys]
        else:
            tasks = [loop.create_task(engine.exists(key)) for key in keys]
        await asyncio.sleep(0)
        pending = engine.stats().pending_keys
        print(flush=True)
        if kind == "bare":
            print(json.dumps(_Child(_peak_memory(), 0, 0, 0)._asdict()), flush=True)
            os._exit(0)  # let the system have the memory back at once
        await asyncio.wait(tasks)
        answered = sum(task.exception() is None and task.result() is False for task in tasks)
        refused = sum(isinstance(task.exception(), OverloadedError) for task in tasks)
        print(json.dumps(_Child(_peak_memory(), answered, refused, pending)._asdict()), flush=True)


def _peak_memory() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


# ---- how it is measured -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call: when it began and ended, in seconds, and its answer or the type of its error."""

    began: float
    ended: float
    answer: bool | type[AioMooncakeError]


@asynccontextmanager
async def _asking(
    engine: am.Engine, key: str = "a", *, callers: int = 10, pause: float = 0.002
) -> AsyncIterator[list[Call]]:
    """Callers ask again and again; what became of each call so far."""
    calls: list[Call] = []
    running = True

    async def caller() -> None:
        while running:
            began = time.perf_counter()
            answer: bool | type[AioMooncakeError]
            try:
                answer = await engine.exists(key)
            except AioMooncakeError as error:
                answer = type(error)  # a million errors would have the garbage collector hold up the loop
            calls.append(Call(began, time.perf_counter(), answer))
            await anyio.sleep(pause)

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(caller)
        yield calls
        running = False


async def _first_answer(calls: list[Call], since: float) -> float:
    """Seconds from `since` to the first answer after it, once there is one."""
    seen = 0
    while True:
        for call in calls[seen:]:
            if call.ended >= since and isinstance(call.answer, bool):
                return call.ended - since
        seen = len(calls)
        await anyio.sleep(0.001)


@asynccontextmanager
async def _loop_lag() -> AsyncIterator[list[float]]:
    """How late, in seconds, a timer of 5 ms comes, again and again."""
    lags: list[float] = []
    interval = 0.005

    async def measure() -> None:
        while True:
            start = time.perf_counter()
            await anyio.sleep(interval)
            lags.append(time.perf_counter() - start - interval)

    async with anyio.create_task_group() as group:
        group.start_soon(measure)
        yield lags
        group.cancel_scope.cancel()


class PortOpening:
    """Looks out, on a thread of its own, for the moment from which a port accepts connections."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._opened = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._opened:
            with suppress(OSError), socket.create_connection(self._address):
                self._opened = time.perf_counter()
            time.sleep(0.001)

    async def wait(self) -> float:
        """That moment, by `time.perf_counter`."""
        await asyncio.to_thread(self._thread.join)
        return self._opened


def _master_only() -> LocalCluster:
    return LocalCluster(store=False)


async def _failing(engine: am.Engine) -> None:
    try:
        await engine.exists("a")
    except AioMooncakeError:
        return
    raise AssertionError("a master that is dead has answered")


async def _seconds(awaitable: Awaitable[object]) -> float:
    start = time.perf_counter()
    await awaitable
    return time.perf_counter() - start


def _median(values: list[float]) -> float:
    return statistics.median(values)


MEASUREMENTS: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    measure.__name__: measure for measure in (dead, back, failover, stopped, queued)
}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        kind, address, options = arguments.child
        await _queue(kind, address, json.loads(options))
        return 0
    if unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(f"no measurement is called {', '.join(sorted(unknown))}")
    missed = 0
    for name in arguments.names or MEASUREMENTS:
        for figure in await MEASUREMENTS[name]():
            verdict = ("ok" if figure.ok else "MISSED") if figure.target else ""
            missed += not figure.ok
            print(f"{figure.name:72}{figure.value:>18}   {figure.target:20} {verdict}".rstrip(), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
