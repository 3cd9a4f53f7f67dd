"""Damage to answers that a client has to notice.

The protocol has no checksum: a frame whose bits are flipped to another valid frame (a 1 to a 0, say) is an answer like
any other, and nobody could tell. So what is damaged here is what has only one right value, which the client knows: the
header's fields, the type hash, the count, and bytes that have to be 0 or 1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["Garbler", "garbage"]

_HEADER = struct.Struct("<BBBBIII")
_MAGIC = 0x15
_INVALID_ARGUMENTS = 4  # an old master's answer to the tenant: in a handshake it is as valid as the right one
# Type hash, meta byte and type string of BatchExistKey's answer, as debug builds write them.
_TYPE_STRING = bytes.fromhex("84870b01") + b"\0"


class Garbler:
    """Damages one frame of some reads; to be a FaultProxy's `answers.transform`.

    Reads that do not hold whole frames only are passed on as they are, since where their frames begin is not known.
    """

    def __init__(self, rng: Random) -> None:
        self.garbled = 0
        self._rng = rng

    def __call__(self, data: bytes) -> bytes:
        """Pass on `data`, damaged or not."""
        frames = _whole_frames(data)
        if not frames or self._rng.random() < 0.5:
            return data
        self.garbled += 1
        number = self._rng.randrange(len(frames))
        frames[number] = self._damage(frames[number])
        return b"".join(frames)

    def _damage(self, frame: bytes) -> bytes:
        rng = self._rng
        magic, version, error, kind, seq, length, attachment = _HEADER.unpack_from(frame)
        body = bytearray(frame[_HEADER.size :])
        payload = body.find(_TYPE_STRING) + len(_TYPE_STRING)
        has_results = payload >= len(_TYPE_STRING) and not error
        field = rng.choice(("magic", "version", "error", "kind", "seq", "length", "attachment", "end", "type", "bits"))
        if field == "magic":
            magic ^= rng.randint(1, 255)
        elif field == "version":
            version = rng.randint(1, 255)
        elif field == "error":  # the body is no text
            error = rng.choice([code for code in range(1, 256) if code != _INVALID_ARGUMENTS])
        elif field == "kind":
            kind = rng.randint(1, 255)
        elif field == "seq":
            seq ^= 1 << rng.randrange(32)
        elif field == "length":
            length ^= 1 << rng.randrange(32)
        elif field == "attachment":
            attachment = 1 << rng.randrange(32)
        elif field == "end" and body:
            del body[rng.randrange(len(body)) :]
        elif field == "bits" and has_results and len(body) > payload + 16:  # behind the count, whatever its width
            body[rng.randrange(payload + 8, len(body))] = rng.randint(2, 255)
        elif body:
            body[rng.randrange(min(4, len(body)))] ^= 0x5A
        return _HEADER.pack(magic, version, error, kind, seq, length, attachment) + body


def garbage(rng: Random) -> bytes:
    """What no master would say, and nobody would take for an answer, wherever it gets between two bytes of one."""
    strangers = (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        _HEADER.pack(_MAGIC, 0, 0, 0, 0xFFFFFFFF, 0, 0),
        _HEADER.pack(_MAGIC, 0, 0, 0, 1, 0xFFFFFFFF, 0),
        bytes(rng.randint(0x80, 0xFF) for _ in range(rng.randint(1, 500))),
    )
    return rng.choice(strangers)


def _whole_frames(data: bytes) -> list[bytes]:
    """The frames of which `data` consists; none if it does not."""
    frames = []
    start = 0
    while start < len(data):
        if len(data) - start < _HEADER.size:
            return []
        magic, version, _, kind, _, length, attachment = _HEADER.unpack_from(data, start)
        end = start + _HEADER.size + length
        if (magic, version, kind, attachment) != (_MAGIC, 0, 0, 0) or end > len(data):
            return []
        frames.append(data[start:end])
        start = end
    return frames
