"""One connection's conversation: sequence numbers and the table of what is unanswered. No clock, no I/O.

A master answers strictly in the order of the requests on a connection, so the table is a queue, and an answer that
is not the next one expected is a fault of the peer. A request keeps its place until its answer comes or the
connection ends, whatever its caller does meanwhile: a late answer is normal, an answer nobody asked for is not.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import RemoteProtocolError
from ..wire.coro_rpc import Frame, FrameDecoder, encode_request

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Session"]

T = TypeVar("T")

_SEQ_LIMIT = 1 << 32


class Session(Generic[T]):
    """Numbers requests and gives each answer back with the token of its request."""

    def __init__(self, max_body: int) -> None:
        """Refuse answers with more than `max_body` bytes."""
        self._decoder = FrameDecoder(max_body)
        self._unanswered: deque[tuple[int, T]] = deque()
        self._seq = 0

    def __len__(self) -> int:
        return len(self._unanswered)

    def request(self, function: int, body: bytes, token: T) -> bytes:
        """The frame to write for this request; its answer will come with `token`."""
        seq = self._seq = (self._seq + 1) % _SEQ_LIMIT
        frame = encode_request(seq, function, body)
        self._unanswered.append((seq, token))
        return frame

    def receive(self, data: bytes) -> Iterator[tuple[T, Frame]]:
        """Take what arrived; yield the answers that are complete, each with its token. Exhaust it.

        Raises:
            RemoteProtocolError: the peer broke framing or order; the session is finished.
        """
        unanswered = self._unanswered
        for frame in self._decoder.feed(data):
            if not unanswered:
                raise RemoteProtocolError(f"answer {frame.seq} to nothing that was asked")
            seq, token = unanswered[0]
            if frame.seq != seq:
                raise RemoteProtocolError(f"answer {frame.seq} where {seq} is next")
            unanswered.popleft()
            yield token, frame

    def abandon(self) -> list[T]:
        """End the session: the tokens that will get no answer, in the order of their requests."""
        tokens = [token for _, token in self._unanswered]
        self._unanswered.clear()
        return tokens
