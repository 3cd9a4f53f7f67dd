"""What goes wrong, in rounds: one to three faults at once, then everything is well until right answers come again."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from .garble import Garbler, garbage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from random import Random

    from aiomooncake.local import LocalCluster
    from aiomooncake.testing import FaultProxy

    from .callers import Callers
    from .model import Model
    from .report import Tally
    from .seats import Seat
    from .writer import Writer

__all__ = ["Faults"]

# Seconds within which the master is killed, and the network fails, once on average at least.
_KILL_EVERY = 10.0
_NETWORK_FAULT_EVERY = 5.0
# Seconds after which a seat that has not answered right is given up.
_RECOVERY_LIMIT = 30.0

Fault: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"


class Faults:
    """Faults of the master, of the network between it and some seats, and of those who use the engines."""

    def __init__(
        self,
        cluster: LocalCluster,
        proxy: FaultProxy,
        seats: Sequence[Seat],
        callers: Callers,
        model: Model,
        writer: Writer,
        tally: Tally,
        rng: Random,
    ) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._seats = seats
        self._callers = callers
        self._model = model
        self._writer = writer
        self._tally = tally
        self._rng = rng
        self._active = 0
        self._names = ""
        self._of_master: dict[str, Fault] = {"SIGKILL": self._kill, "SIGTERM": self._terminate, "SIGSTOP": self._stop}
        self._of_network: dict[str, Fault] = {
            "cut": self._cut,
            "hang up": self._hang_up,
            "cut inside a request": self._cut_inside_request,
            "cut inside an answer": self._cut_inside_answer,
            "hold requests": self._hold_requests,
            "hold answers": self._hold_answers,
            "refuse": self._refuse,
            "delay": self._delay,
            "byte by byte": self._split,
            "garbled answers": self._garble,
            "injected garbage": self._inject,
        }
        self._of_callers: dict[str, Fault] = {
            "engine reopened": self._reopen,
            "cancellations": self._cancel_some,
            "burst, half cancelled": self._burst,
        }

    async def round(self, elapsed: float) -> None:
        """Faults, recovery, and a moment of peace. `elapsed` seconds of the run are over."""
        async with anyio.create_task_group() as tasks:
            chosen = list(self._choose(elapsed))
            self._names = " + ".join(name for _, name, _ in chosen)
            for counter, name, fault in chosen:
                counter[name] += 1
                tasks.start_soon(fault)
        for seat in self._seats:
            if seat.forgiving:
                continue  # its misses prove nothing
            with anyio.move_on_after(_RECOVERY_LIMIT) as scope:
                await seat.wait_recovered()
            if scope.cancelled_caught:
                self._tally.unexpected(f"{seat.name}: no right answer {_RECOVERY_LIMIT:g} s after the last fault")
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))

    def _choose(self, elapsed: float) -> Iterator[tuple[dict[str, int], str, Fault]]:
        rng, tally = self._rng, self._tally
        kind = rng.choice(("master", "network", "network", "callers", "both", "all"))
        if tally.master_faults["SIGKILL"] <= elapsed / _KILL_EVERY:
            yield tally.master_faults, "SIGKILL", self._kill
        elif kind in ("master", "both", "all"):
            name = rng.choice(list(self._of_master))
            yield tally.master_faults, name, self._of_master[name]
        if kind in ("network", "both", "all") or tally.connection_faults.total() <= elapsed / _NETWORK_FAULT_EVERY:
            name = rng.choice(list(self._of_network))
            yield tally.connection_faults, name, self._of_network[name]
        if kind in ("callers", "all"):
            name = rng.choice(list(self._of_callers))
            yield tally.caller_faults, name, self._of_callers[name]

    @contextmanager
    def _fault(self) -> Iterator[None]:
        """While it lasts. Recovery is measured from the moment when no fault lasts any more."""
        self._active += 1
        for seat in self._seats:
            seat.struck()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                for seat in self._seats:
                    seat.healed(self._names)

    async def _sleep(self, longest: float) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, longest))

    # ---- the master -------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        await self._replace_master(self._cluster.kill_master)

    async def _terminate(self) -> None:
        await self._replace_master(self._cluster.terminate_master)

    async def _replace_master(self, end: Fault) -> None:
        async with anyio.create_task_group() as tasks:
            with self._fault():
                self._writer.pause()
                self._model.losing_all()
                await end()
                self._model.lost_all()
                await self._sleep(0.3)
                tasks.start_soon(self._cluster.restart_master)
                await _port_opens(self._cluster.address)
        self._writer.resume()

    async def _stop(self) -> None:
        with self._fault():
            self._cluster.stop_master()
            await self._sleep(2.0)
            self._cluster.continue_master()

    # ---- the network ------------------------------------------------------------------------------------------

    async def _cut(self) -> None:
        with self._fault():
            await self._proxy.cut()

    async def _hang_up(self) -> None:
        with self._fault():
            await self._proxy.hang_up()

    async def _cut_inside_request(self) -> None:
        with self._fault():
            self._proxy.requests.cut_after(self._rng.randrange(100_000))
            await self._sleep(0.3)

    async def _cut_inside_answer(self) -> None:
        with self._fault():
            self._proxy.answers.cut_after(self._rng.randrange(10_000))
            await self._sleep(0.3)

    async def _hold_requests(self) -> None:
        with self._fault():
            self._proxy.requests.hold()
            await self._sleep(1.5)
            self._proxy.requests.release()

    async def _hold_answers(self) -> None:
        with self._fault():
            self._proxy.answers.hold()
            await self._sleep(1.5)
            self._proxy.answers.release()

    async def _refuse(self) -> None:
        with self._fault():
            self._proxy.refuse()
            await self._proxy.cut()
            await self._sleep(1.0)
            self._proxy.resume()

    async def _delay(self) -> None:
        with self._fault():
            self._proxy.answers.delay = self._rng.uniform(0.0, 0.1)
            self._proxy.requests.delay = self._rng.uniform(0.0, 0.1)
            await self._sleep(1.0)
            self._proxy.answers.delay = self._proxy.requests.delay = 0.0

    async def _split(self) -> None:
        with self._fault():
            self._proxy.answers.chunk_size = 1
            self._proxy.requests.chunk_size = self._rng.choice((None, 1, 20))
            await self._sleep(1.0)
            self._proxy.answers.chunk_size = self._proxy.requests.chunk_size = None

    async def _garble(self) -> None:
        with self._fault():
            garbler = self._proxy.answers.transform = Garbler(self._rng)
            await self._sleep(1.0)
            self._proxy.answers.transform = None
        self._tally.garbled_frames += garbler.garbled

    async def _inject(self) -> None:
        with self._fault():
            for _ in range(self._rng.randint(1, 5)):
                self._proxy.answers.inject(garbage(self._rng))
                await self._sleep(0.1)

    # ---- those who use the engines ----------------------------------------------------------------------------

    async def _reopen(self) -> None:
        seat = self._rng.choice(self._seats)
        with self._fault():
            await seat.close(self._rng.choice(("once", "twice", "cancelled")))
            await seat.open()

    async def _cancel_some(self) -> None:
        with self._fault():
            self._callers.cancel_some(self._rng, self._rng.uniform(0.1, 1.0))

    async def _burst(self) -> None:
        with self._fault():
            for _ in range(self._rng.randint(1, 10)):
                self._callers.ask_at_once(self._rng)
                await asyncio.sleep(0)


async def _port_opens(address: str) -> None:
    """Wait until somebody listens at `address` on loopback."""
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket() as sock:
            if sock.connect_ex((host, int(port))) == 0:
                return
        await asyncio.sleep(0.001)
