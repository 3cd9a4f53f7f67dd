"""coro_rpc framing: request headers out, response frames in.

Request:  u8 magic · u8 version · u8 serialize type · u8 message type · u32 seq · u32 function id ·
          u32 body length · u32 attachment length · body
Response: u8 magic · u8 version · u8 error code · u8 message type · u32 seq ·
          u32 body length · u32 attachment length · body

All integers are little-endian. Answers echo the seq of their request and, on one connection, come in the order of
the requests. Source: yalantinglibs, coro_rpc protocol; checked against recorded frames.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from ..errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_REQUEST_BODY", "Frame", "FrameDecoder", "encode_request", "function_id"]

MAGIC = 0x15
# A request carries the length of its body as u32.
MAX_REQUEST_BODY = (1 << 32) - 1

_REQUEST = struct.Struct("<BBBBIIII")
_RESPONSE = struct.Struct("<BBBBIII")
_RESPONSE_SIZE = _RESPONSE.size
_HEADER_START = bytes((MAGIC, 0))


def function_id(name: str) -> int:
    """The id under which the master registers `name`, for example "mooncake::WrappedMasterService::BatchExistKey"."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:4], "big")


def encode_request(seq: int, function: int, body: bytes) -> bytes:
    """One whole request frame."""
    return _REQUEST.pack(MAGIC, 0, 0, 0, seq, function, len(body), 0) + body


class Frame(NamedTuple):
    """One response. `error` is coro_rpc's `errc`; when it is not 0, `body` is a message instead of a value."""

    seq: int
    error: int
    body: bytes


class FrameDecoder:
    """Cuts the bytes of one connection, however they arrive, into response frames.

    It holds at most one frame that is not complete yet, and of that one only what has arrived. After a
    RemoteProtocolError it must not be used again: where the next frame starts is unknown.
    """

    def __init__(self, max_body: int) -> None:
        """Refuse frames whose body is announced longer than `max_body` bytes, before any of it is kept."""
        self._max_body = max_body
        self._buffer = bytearray()
        self._needed = _RESPONSE_SIZE

    @property
    def buffered(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what arrived; yield the frames that are now complete, in order (often none or one).

        The iterator has to be exhausted before the next call.

        Raises:
            RemoteProtocolError: what follows the frames yielded so far is no coro_rpc response, or one over the cap.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            # A large frame comes in many pieces: look again only when enough is there.
            if len(buffer) < self._needed:
                _check_start(buffer)
                return
            data = bytes(buffer)
            buffer.clear()
        start, size = 0, len(data)
        while size - start >= _RESPONSE_SIZE:
            magic, version, error, message_type, seq, length, attachment = _RESPONSE.unpack_from(data, start)
            if magic != MAGIC or version or message_type:
                raise RemoteProtocolError(_describe_garbage(data[start : start + 64]))
            if attachment:
                raise RemoteProtocolError(
                    f"answer {seq} announces an attachment of {attachment} bytes; lookups have none"
                )
            if length > self._max_body:
                raise RemoteProtocolError(f"answer {seq} announces {length} bytes; the cap is {self._max_body}")
            end = start + _RESPONSE_SIZE + length
            if end > size:
                self._needed = end - start
                break
            yield Frame(seq, error, data[start + _RESPONSE_SIZE : end])
            start = end
        else:
            _check_start(data[start:])
            self._needed = _RESPONSE_SIZE
        buffer += data[start:] if start else data


def _check_start(head: bytes | bytearray) -> None:
    """Less than a header is enough to know a wrong peer, and that may be all it ever sends."""
    if not _HEADER_START.startswith(head[:2]):
        raise RemoteProtocolError(_describe_garbage(bytes(head[:64])))


def _describe_garbage(head: bytes) -> str:
    # Where the kind of peer shows, its first byte tells: no more may have arrived.
    if b"HTTP/".startswith(head[:5]) or head.startswith(b"<"):
        hint = "; this port speaks HTTP (the master's metrics port?), give the RPC port"
    elif b"\x16\x03".startswith(head[:2]) or head.startswith(b"\x15\x03"):
        hint = "; this port speaks TLS, and Mooncake's RPC has none"
    else:
        hint = "; is this the RPC port of a mooncake_master?"
    return f"not a coro_rpc answer: {head[:16]!r}{hint}"
