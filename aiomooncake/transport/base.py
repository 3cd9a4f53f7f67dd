"""What the coalescer asks of a transport, and what a transport asks of a batch.

Everything here happens on the engine's loop, and nothing here waits: a transport either has a channel with a free
slot or has none, and says when that changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..errors import AioMooncakeError
    from ..reply import Reply
    from ..wire.messages import Key

__all__ = ["Call", "Channel", "MasterInfo", "Transport"]


class Call(Protocol):
    """A batch on its way. Exactly one of the two methods is called, once, for each call that `send` accepted."""

    @property
    def keys(self) -> Sequence[Key]:
        """The keys to ask, in order."""
        ...

    def answered(self, reply: Reply) -> None:
        """Take the answers, one for each of `keys`."""
        ...

    def failed(self, error: AioMooncakeError) -> None:
        """Learn that there will be no answers."""
        ...


class Channel(Protocol):
    """A connection or worker with a free slot."""

    @property
    def outstanding_keys(self) -> int:
        """Keys of the calls that were sent on it and not answered yet."""
        ...

    def send(self, call: Call) -> None:
        """Send the call. Its slot is free again before `answered` or `failed` is called.

        Raises:
            LocalProtocolError: the keys cannot be sent; nothing was, and the slot is still free.
        """
        ...


@dataclass(frozen=True)
class MasterInfo:
    """What is known of the peer: None where nothing is known, or where the transport cannot tell.

    `address` is "host:port"; `version` the store protocol version that the master reports; `tenants` whether its
    BatchExistKey takes a tenant (masters from 0.3.12 on).
    """

    address: str | None = None
    version: str | None = None
    tenants: bool | None = None


class Transport(Protocol):
    """Carries calls to one master (or to whichever of several serves)."""

    def bind(self, *, on_room: Callable[[], None], on_unavailable: Callable[[AioMooncakeError], None]) -> None:
        """Say whom to tell that a slot has become free other than by an answer, and that there will be none."""
        ...

    def channel(self, *, bulk: bool) -> Channel | None:
        """A channel with a free slot, the least loaded first; None: `on_room` or `on_unavailable` will be called.

        With `bulk`, the channel that is kept for smaller questions is not offered while another one stands.

        Raises:
            ConnectError: the master is known to be away, and it is too early to try again.
        """
        ...

    async def connect(self) -> None:
        """Make the transport usable, or raise ConnectError."""
        ...

    async def aclose(self) -> None:
        """Let go of everything. Calls that are still out fail with ClosedError before this returns."""
        ...

    def abort(self) -> None:
        """As `aclose`, at once and without waiting; for an engine that was never closed."""
        ...

    @property
    def master(self) -> MasterInfo:
        """The peer, as far as known."""
        ...

    @property
    def open_channels(self) -> int:
        """How many channels could carry a call now."""
        ...

    @property
    def connections_lost(self) -> int:
        """How often a channel that worked was lost."""
        ...
