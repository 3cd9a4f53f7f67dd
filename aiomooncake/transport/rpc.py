"""The rpc transport: a few connections to the master that serves, kept up on demand, on the engine's own loop."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import AioMooncakeError, ConnectError, fresh
from .base import MasterInfo
from .connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ..target import Address

__all__ = ["RpcTransport"]

# Seconds that one attempt to connect may take, handshake included. A hung master still accepts connections.
_ATTEMPT_LIMIT = 5.0
# Several frames of a default batch. Zeroed pages that are never touched cost nothing.
_LARGEST_BLOCK = 4 << 20
# Seconds between attempts: full jitter below a doubling bound. The last bound is how late a master that is back may
# be noticed; an attempt at a closed port costs a fraction of a millisecond.
_BACKOFF_FIRST = 0.01
_BACKOFF_LIMIT = 0.2


class RpcTransport:
    """Implements `Transport` over Mooncake's RPC.

    Connections are made when a question needs them, one attempt at a time each; an idle transport runs nothing. With
    several connections the first ones take bulk calls and the last is kept for short questions: the master serves a
    connection strictly in order, so a short question behind a bulk call would wait for all of it.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        tenant: str,
        connections: int,
        max_in_flight: int,
        max_batch_keys: int,
    ) -> None:
        """Talk to the first of `addresses` that serves, over `connections` sockets."""
        self._addresses = list(addresses)
        self._tenant = tenant
        self._new_connection = partial(
            Connection,
            max_in_flight=max_in_flight,
            max_batch_keys=max_batch_keys,
            on_room=self._room,
            on_lost=self._lost,
        )
        self._links = [_Link() for _ in range(connections)]
        self._bulk_links = self._links[: max(1, connections - 1)]
        self._master = MasterInfo(address=str(self._addresses[0]))
        self._on_room: Callable[[], None]
        self._on_unavailable: Callable[[AioMooncakeError], None]
        self._closed = False
        self.connections_lost = 0

    def bind(self, *, on_room: Callable[[], None], on_unavailable: Callable[[AioMooncakeError], None]) -> None:
        """See `Transport`."""
        self._on_room = on_room
        self._on_unavailable = on_unavailable

    def channel(self, *, bulk: bool) -> Connection | None:
        """See `Transport`."""
        best: Connection | None = None
        for link in self._bulk_links if bulk else self._links:
            connection = link.connection
            if connection is None:
                self._revive(link)
            elif connection.has_room and (best is None or connection.outstanding_keys < best.outstanding_keys):
                best = connection
        if best is None:
            self._refuse_if_away()
        return best

    async def connect(self) -> None:
        """See `Transport`. Succeeds when one connection stands; the others follow on demand."""
        _keep_blocks()
        first, *others = self._links
        await first.start(self._establish(first))
        if first.error is not None:
            raise fresh(first.error)
        await asyncio.gather(*(link.start(self._establish(link)) for link in others))

    async def aclose(self) -> None:
        """See `Transport`."""
        tasks = [link.task for link in self._links if link.task is not None]
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """See `Transport`."""
        self._closed = True
        for link in self._links:
            if link.task is not None:
                link.task.cancel()
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

    # ---- making and losing connections ------------------------------------------------------------------------

    def _revive(self, link: _Link) -> None:
        """A question could use this connection: try again, unless that is under way or it is too early."""
        if link.task is None and not self._closed and asyncio.get_running_loop().time() >= link.retry_at:
            _ = link.start(self._establish(link))

    def _refuse_if_away(self) -> None:
        """Raise what keeps us from the master, if no connection stands and none is being made."""
        error: ConnectError | None = None
        for link in self._links:
            if link.connection is not None or link.task is not None:
                return
            error = link.error or error
        if error is not None:
            raise fresh(error)

    async def _establish(self, link: _Link) -> None:
        """Connect to the first address that serves; leaves the outcome in `link` and tells whom it concerns."""
        failures: list[str] = []
        cause: BaseException | None = None
        try:
            for address in list(self._addresses):
                try:
                    link.connection = await self._attempt(address)
                except (OSError, AioMooncakeError) as error:
                    cause = error
                    failures.append(_describe(address, error))
                else:
                    # Connections that follow go to the same master first.
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    link.succeeded()
                    break
        finally:
            link.task = None
        if link.connection is not None:
            self._on_room()
            return
        link.error = ConnectError(
            f"cannot connect to a Mooncake master: {'; '.join(failures)}. Is mooncake_master running there?"
        )
        link.error.__cause__ = cause
        link.failed(asyncio.get_running_loop().time())
        if not any(other.connection or other.task for other in self._links):
            self._on_unavailable(link.error)

    async def _attempt(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        connection = self._new_connection(str(address))
        # A second connection to a master that is already known need not ask what it takes.
        known = self._master.tenants if self.open_channels and str(address) == self._master.address else None
        try:
            with anyio.fail_after(_ATTEMPT_LIMIT):
                await loop.create_connection(lambda: connection, address.host, address.port)
                await connection.handshake(self._tenant, takes_tenant=known)
        except BaseException:
            connection.close()
            raise
        assert connection.service is not None
        self._master = MasterInfo(str(address), connection.service.version, connection.takes_tenant)
        return connection

    def _lost(self, connection: Connection) -> None:
        for link in self._links:
            if link.connection is connection:
                link.connection = None
                if not self._closed:
                    self.connections_lost += 1

    def _room(self) -> None:
        self._on_room()


class _Link:
    """The place of one connection: the connection, or the attempt to make it, or why there is none."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None
        self.error: ConnectError | None = None
        self.retry_at = 0.0
        self._failures = 0

    def start(self, attempt: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.task = asyncio.get_running_loop().create_task(attempt, name="aiomooncake connect")
        return self.task

    def succeeded(self) -> None:
        self.error = None
        self._failures = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> None:
        bound = min(_BACKOFF_LIMIT, _BACKOFF_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self.retry_at = now + random.uniform(0.0, bound)


def _keep_blocks() -> None:
    """Let malloc keep the blocks that frames are made of, instead of asking the kernel for each again.

    glibc maps blocks over 128 KB anew each time until it has seen a larger one freed once; page faults then cost more
    than encoding a batch (2048 keys: 238 us against 52 us, see benchmarks/codec.py). Elsewhere this does nothing.
    """
    bytes(_LARGEST_BLOCK)


def _describe(address: Address, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"{address} said nothing for {_ATTEMPT_LIMIT} s (it hangs, or something between drops packets)"
    text = str(error) or type(error).__name__
    return text if str(address) in text else f"{address}: {text}"
