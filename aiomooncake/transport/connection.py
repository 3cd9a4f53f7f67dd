"""One TCP connection to a master, as an asyncio protocol."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, cast

from ..errors import (
    AioMooncakeError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RpcError,
    StoreError,
    fresh,
)
from ..wire.messages import (
    BATCH_EXIST_KEY,
    MAX_MESSAGE,
    SERVICE_READY,
    BatchExistEncoder,
    ServiceReady,
    decode_batch_exist,
    decode_error_message,
    decode_service_ready,
    largest_batch_exist_answer,
)
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire.coro_rpc import Frame
    from .base import Call

__all__ = ["Connection"]

_INVALID_ARGUMENTS = 4  # coro_rpc's errc
# Keys up to which the way there and back is a good part of a call's time, and seconds that a master needs for a key at
# least: the rest is the way.
_FEW_KEYS = 512
_KEY_SECONDS = 0.5e-6

_Token: TypeAlias = "Call | asyncio.Future[Frame]"


class Connection(asyncio.Protocol):
    """Pipelines calls on one socket; the master serves them in order.

    Made by `loop.create_connection`, then `handshake` finds out what the master speaks, then calls may be sent
    while `has_room`. When it ends, for whatever reason, every call that is out fails at once and `on_lost` is called.
    A Connection is never used again after that.
    """

    def __init__(
        self,
        address: str,
        *,
        max_in_flight: int,
        max_batch_keys: int,
        on_room: Callable[[], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        """Get ready to talk to `address` ("host:port", for messages only)."""
        self.address = address
        self.has_room = False
        self.outstanding_keys = 0
        self.answers = 0  # pieces of answers seen: a sign of life
        self.lone_latency = 0.0  # about how long a small call takes on it when it is idle, in seconds
        self._lone_since = 0.0
        self.service: ServiceReady | None = None
        self.ended_by: AioMooncakeError | None = None
        self.takes_tenant = True
        self._session: Session[_Token] = Session(max(MAX_MESSAGE, largest_batch_exist_answer(max_batch_keys)))
        self._max_in_flight = max_in_flight
        self._on_room = on_room
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._encoder = BatchExistEncoder(None)
        self._established = False
        self._paused = False

    # ---- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.answers += 1
        try:
            for token, frame in self._session.receive(data):
                if isinstance(token, asyncio.Future):
                    if not token.done():
                        token.set_result(frame)
                else:
                    self._settle(token, frame)
        except RemoteProtocolError as error:
            self.end(RemoteProtocolError(f"{self.address}: {error}"))

    def pause_writing(self) -> None:
        """Called by the loop: the socket takes no more for now."""
        self._paused = True
        self.has_room = False

    def resume_writing(self) -> None:
        """Called by the loop: the socket takes more again."""
        self._paused = False
        self._update_room()
        if self.has_room:
            self._on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        reason = "closed by the master" if exc is None else str(exc) or type(exc).__name__
        error = ConnectionLostError(f"connection to {self.address} was lost before the answer came: {reason}")
        error.__cause__ = exc
        self.end(error)

    # ---- calls ------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Send a call; only while `has_room`.

        Raises:
            LocalProtocolError: the keys cannot be sent; nothing was.
        """
        assert self._transport is not None
        keys = call.keys
        body = self._encoder.encode(keys)
        # The slot is taken before the write, which may pause us.
        frame = self._session.request(BATCH_EXIST_KEY, body, call)
        if not self.outstanding_keys and len(keys) <= _FEW_KEYS:
            self._lone_since = perf_counter() + len(keys) * _KEY_SECONDS
        self.outstanding_keys += len(keys)
        if len(self._session) >= self._max_in_flight:
            self.has_room = False
        self._transport.write(frame)

    def _settle(self, call: Call, frame: Frame) -> None:
        count = len(call.keys)
        self.outstanding_keys -= count
        if self._lone_since:
            self._note_latency(perf_counter() - self._lone_since)
        self._update_room()
        try:
            if frame.error:
                call.failed(RpcError(frame.error, decode_error_message(frame.body)))
                return
            reply = decode_batch_exist(frame.body, count)
        except RemoteProtocolError as error:
            failure = RemoteProtocolError(f"{self.address}: {error}")
            self.end(failure)  # first: what waits for a slot is looked at when the call fails, and needs another one
            call.failed(failure)
            raise
        call.answered(reply)

    def _note_latency(self, latency: float) -> None:
        self._lone_since = 0.0
        # Down at once and up slowly: now and then any call is late.
        slower = latency - self.lone_latency
        self.lone_latency += slower / 16 if slower > 0 and self.lone_latency else slower

    def _update_room(self) -> None:
        self.has_room = (
            self._established
            and not self._paused
            and self.ended_by is None
            and len(self._session) < self._max_in_flight
        )

    # ---- life -------------------------------------------------------------------------------------------------

    async def handshake(self, tenant: str) -> None:
        """Ask whether the master serves and which form of BatchExistKey it takes; then calls may be sent.

        Args:
            tenant: sent with every call to a master that takes one.

        Raises:
            ConnectError: the master says that it does not serve.
            RpcError, RemoteProtocolError, ConnectionLostError: as the peer behaves.
        """
        ready = self._ask(SERVICE_READY, b"")
        # Asked in the old form: a new master refuses that before it counts a request.
        old_form = self._ask(BATCH_EXIST_KEY, BatchExistEncoder(None).encode(()))
        self.service = decode_service_ready(_body(await ready))
        if self.service.code:
            raise ConnectError(f"{self.address} is not serving: {StoreError(self.service.code)}")
        frame = await old_form
        self.takes_tenant = frame.error == _INVALID_ARGUMENTS
        if not self.takes_tenant:
            decode_batch_exist(_body(frame), 0)
        self._encoder = BatchExistEncoder(tenant if self.takes_tenant else None)
        self._established = True
        self._update_room()

    def _ask(self, function: int, body: bytes) -> asyncio.Future[Frame]:
        assert self._transport is not None
        if self.ended_by is not None:  # what a stranger says unasked may come before `create_connection` returns
            raise fresh(self.ended_by)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._transport.write(self._session.request(function, body, future))
        return future

    def end(self, error: AioMooncakeError) -> None:
        """Drop the connection now and fail what is out with an error of this kind; again: nothing."""
        if self.ended_by is not None:
            return
        self.ended_by = error
        self.has_room = False
        if self._transport is not None:
            self._transport.abort()
        tokens = self._session.abandon()
        # First let others take this connection's place: a call that fails may lead to the next question at once.
        self._on_lost(self)
        for token in tokens:
            if not isinstance(token, asyncio.Future):
                token.failed(error)
            elif not token.done():
                token.set_exception(fresh(error))
                token.exception()  # the second of two handshake questions may have nobody left to read it

    def close(self) -> None:
        """Drop the connection because we want to."""
        self.end(ClosedError("the engine was closed before the answer came"))


def _body(frame: Frame) -> bytes:
    if frame.error:
        raise RpcError(frame.error, decode_error_message(frame.body))
    return frame.body
