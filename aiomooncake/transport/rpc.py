"""The rpc transport: a few connections to the master that serves, kept up on demand, on the engine's own loop."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import AioMooncakeError, ConnectError, ConnectionLostError, fresh
from .base import MasterInfo
from .connection import Connection
from .dial import Dialer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ..target import Address

__all__ = ["LeaderSource", "RpcTransport"]

# Several frames of a default batch. Zeroed pages that are never touched cost nothing.
_LARGEST_BLOCK = 4 << 20
# Seconds between attempts: full jitter below a doubling bound. The last bound is how late a master that is back may
# be noticed; an attempt at a closed port costs a fraction of a millisecond.
_BACKOFF_FIRST = 0.01
_BACKOFF_LIMIT = 0.2
# Seconds for which `connect` waits for the other connections once one stands.
_COMPANY_LIMIT = 0.25
# One in so many questions that find idle connections tries one that was slower before.
_RETRY_SLOWER = 256
# Seconds between looks at connections that owe us answers, and how long one may be silent before it is in doubt:
# longer for more keys, at many times what a master needs for one (0.4 to 1.2 us), since others ask it too.
_LOOK_INTERVAL = 0.1
_PATIENCE = 0.4
_PATIENCE_PER_KEY = 20e-6


class LeaderSource(Protocol):
    """Knows which master leads."""

    async def read(self) -> Address | None:
        """The leader now; None if none is named. Raises ConnectError if that cannot be found out."""
        ...

    async def watch(self, on_leader: Callable[[Address | None], None]) -> None:
        """Tell the leader, at once and whenever it changes, until cancelled."""
        ...


class RpcTransport:
    """Implements `Transport` over Mooncake's RPC.

    Connections are made when a question needs them, one attempt at a time; an idle transport runs nothing. All go to
    one master. With several connections the first ones take bulk calls and the last is kept for smaller questions: a
    master serves a connection strictly in order, so a short question behind a bulk call would wait for all of it.

    A connection that owes answers and is silent for too long is doubted: a new one is made beside it, and takes its
    place if a master answers there. A master that is known to be away is not asked before its next attempt is due.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        tenant: str,
        connections: int,
        max_in_flight: int,
        max_batch_keys: int,
        leader: LeaderSource | None = None,
    ) -> None:
        """Talk over `connections` sockets to the first of `addresses` that serves, or to whom `leader` names."""
        self._addresses = list(addresses)
        self._leader = leader
        self._following: asyncio.Task[None] | None = None
        self._dialer = Dialer(
            partial(
                Connection,
                max_in_flight=max_in_flight,
                max_batch_keys=max_batch_keys,
                on_room=self._room,
                on_lost=self._lost,
            ),
            tenant,
        )
        self._links = [_Link() for _ in range(connections)]
        self._bulk_links = self._links[: max(1, connections - 1)]
        self._backoff = _Backoff()
        self._look: asyncio.TimerHandle | None = None
        self._ties = 0
        self._master = MasterInfo(address=str(addresses[0]) if addresses else None)
        self._on_room: Callable[[], None]
        self._on_unavailable: Callable[[AioMooncakeError], None]
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.connections_lost = 0

    def bind(self, *, on_room: Callable[[], None], on_unavailable: Callable[[AioMooncakeError], None]) -> None:
        """See `Transport`."""
        self._on_room = on_room
        self._on_unavailable = on_unavailable

    def channel(self, *, bulk: bool) -> Connection | None:
        """See `Transport`."""
        best: Connection | None = None
        # While none of the links for bulk calls stands, they take the others: nothing says when one will.
        keeps_free = bulk and any(link.connection is not None for link in self._bulk_links)
        for link in self._bulk_links if keeps_free else self._links:
            connection = link.connection
            if connection is None:
                self._revive(link)
            elif connection.has_room and (best is None or self._is_better(connection, best)):
                best = connection
        if best is None:
            self._refuse_if_away()
        elif self._look is None:
            self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_after)
        return best

    async def connect(self) -> None:
        """See `Transport`. Succeeds when one connection stands; the others get a moment, and are made meanwhile."""
        _keep_blocks()
        if self._leader is not None:
            self._following = self._loop.create_task(self._leader.watch(self._led_by), name="aiomooncake leader")
            self._led_by(await self._leader.read())
        first, *others = self._links
        while not self.open_channels:
            # Not awaited itself: a change of leader ends it, which is no cancellation of ours.
            attempt = first.start(self._establish(first))
            await asyncio.wait([attempt])
            if not attempt.cancelled():
                attempt.result()
            if self._backoff.error is not None:
                raise fresh(self._backoff.error)
        if others:
            await asyncio.wait([link.start(self._establish(link)) for link in others], timeout=_COMPANY_LIMIT)

    async def aclose(self) -> None:
        """See `Transport`."""
        tasks = [link.task for link in self._links if link.task is not None]
        if self._following is not None:
            tasks.append(self._following)
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """See `Transport`."""
        self._closed = True
        if self._following is not None:
            self._following.cancel()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for link in self._links:
            link.stop()
            if link.connection is not None:
                link.connection.close()

    @property
    def master(self) -> MasterInfo:
        """See `Transport`."""
        return self._master

    @property
    def open_channels(self) -> int:
        """See `Transport`."""
        return sum(link.connection is not None for link in self._links)

    def _is_better(self, connection: Connection, best: Connection) -> bool:
        """The less loaded one; of idle ones the quicker.

        Which of the master's threads serves a connection can make a difference of several times: on one machine, it is
        whether that thread sleeps on our core or is woken on another. Now and then the slower one is tried again.
        """
        load = connection.outstanding_keys - best.outstanding_keys
        if load:
            return load < 0
        self._ties += 1
        quicker = connection.lone_latency < best.lone_latency
        return quicker if self._ties % _RETRY_SLOWER else not quicker

    # ---- making connections -----------------------------------------------------------------------------------

    def _revive(self, link: _Link) -> None:
        """A question could use this connection: try again, unless that is under way or it is too early."""
        if link.task is not None or self._closed or not self._backoff.is_over(self._loop.time()):
            return
        if self.open_channels or not self._is_dialing():  # where the first one finds a master, the others follow
            _ = link.start(self._establish(link))

    def _is_dialing(self) -> bool:
        return any(link.task is not None for link in self._links)

    def _refuse_if_away(self) -> None:
        """Raise what keeps us from the master, if no connection stands and none is being made."""
        if self._backoff.error is not None and not self.open_channels and not self._is_dialing():
            raise fresh(self._backoff.error)

    async def _establish(self, link: _Link) -> None:
        connection = await self._attempt(link, only_current=self.open_channels > 0)
        if connection is not None:
            link.connection = connection
            self._on_room()

    async def _attempt(self, link: _Link, *, only_current: bool) -> Connection | None:
        """Dial for this link. If that fails, those who wait are told, unless a connection stands or may still come."""
        try:
            return await self._dial(only_current=only_current)
        except ConnectError as error:
            failure = error
        finally:
            link.ended()
        if not self.open_channels and not self._is_dialing():
            self._on_unavailable(failure)
        return None

    async def _dial(self, *, only_current: bool) -> Connection:
        """A connection to a master that serves; whatever stands to another master is dropped."""
        addresses = [address for address in self._addresses if not only_current or str(address) == self._master.address]
        try:
            connection = await self._dialer.dial(addresses)
        except ConnectError as error:
            self._backoff.failed(self._loop.time(), error)
            raise
        self._backoff.succeeded()
        assert connection.service is not None
        self._master = MasterInfo(connection.address, connection.service.version, connection.takes_tenant)
        # Preferred from now on.
        self._addresses.sort(key=lambda address: str(address) != connection.address)
        self._drop_others(connection.address)
        return connection

    # ---- losing connections -----------------------------------------------------------------------------------

    def _lost(self, connection: Connection) -> None:
        for link in self._links:
            if link.connection is connection:
                link.connection = None
                if not self._closed:
                    self.connections_lost += 1

    def _room(self) -> None:
        self._on_room()

    def _look_after(self) -> None:
        """Doubt connections that owe us answers and have been silent for too long."""
        self._look = None
        now = self._loop.time()
        for link in self._links:
            connection = link.connection
            if connection is None or link.task is not None or not link.is_silent(now):
                continue
            if self._backoff.is_over(now):
                _ = link.start(self._replace(link, connection, connection.answers))
        if any(link.connection is not None and link.connection.outstanding_keys for link in self._links):
            self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_after)

    async def _replace(self, link: _Link, doubted: Connection, answers: int) -> None:
        """Put a new connection in the place of a silent one, if a master answers there and it is silent still."""
        connection = await self._attempt(link, only_current=False)
        if connection is None:
            return  # nobody answers there either, so the old one is as good
        if link.connection is doubted and doubted.answers == answers:
            link.connection = connection
            self.connections_lost += 1
            doubted.end(
                ConnectionLostError(f"connection to {doubted.address} fell silent while the master answers others")
            )
            self._on_room()
        elif link.connection is None:
            link.connection = connection
            self._on_room()
        else:
            connection.close()

    def _led_by(self, leader: Address | None) -> None:
        """The cluster names its leader: answers of any other count no more."""
        if leader is None or self._closed or self._addresses == [leader]:
            return  # while none is named, nobody newer is known
        self._addresses = [leader]
        self._backoff.succeeded()
        for link in self._links:
            link.stop()
        self._drop_others(str(leader))
        self._on_room()

    def _drop_others(self, address: str) -> None:
        for link in self._links:
            connection = link.connection
            if connection is not None and connection.address != address:
                connection.end(ConnectionLostError(f"{connection.address} leads no longer, {address} does"))


class _Link:
    """The place of one connection: the connection, and the attempt to make or replace it."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None
        self._watched: tuple[Connection, int] | None = None
        self._silent_since = 0.0

    def start(self, attempt: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.task = asyncio.get_running_loop().create_task(attempt, name="aiomooncake connect")
        return self.task

    def stop(self) -> None:
        """Give up the attempt; another may be started at once."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    def ended(self) -> None:
        """To be called by the attempt itself: it is over."""
        if self.task is asyncio.current_task():
            self.task = None

    def is_silent(self, now: float) -> bool:
        """Whether the connection has owed answers for too long without giving one; to be called now and then."""
        connection = self.connection
        if connection is None or not connection.outstanding_keys:
            self._watched = None
        elif self._watched != (connection, connection.answers):
            self._watched = (connection, connection.answers)
            self._silent_since = now
        else:
            return now - self._silent_since > _PATIENCE + connection.outstanding_keys * _PATIENCE_PER_KEY
        return False


class _Backoff:
    """When the next attempt is due, and why the last one failed."""

    def __init__(self) -> None:
        self.error: ConnectError | None = None
        self._failures = 0
        self._retry_at = 0.0

    def is_over(self, now: float) -> bool:
        return now >= self._retry_at

    def failed(self, now: float, error: ConnectError) -> None:
        self.error = error
        bound = min(_BACKOFF_LIMIT, _BACKOFF_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._retry_at = now + random.uniform(0.0, bound)

    def succeeded(self) -> None:
        self.error = None
        self._failures = 0
        self._retry_at = 0.0


def _keep_blocks() -> None:
    """Let malloc keep the blocks that frames are made of, instead of asking the kernel for each again.

    glibc maps blocks over 128 KB anew each time until it has seen a larger one freed once; page faults then cost more
    than encoding a batch (2048 keys: 238 us against 52 us, see benchmarks/codec.py). Elsewhere this does nothing.
    """
    bytes(_LARGEST_BLOCK)
