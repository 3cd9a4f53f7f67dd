"""struct_pack, as far as the master's calls use it: type headers and container widths.

A value on the wire is

    type hash (u32) · [meta byte] · [type string, NUL-terminated] · payload

The hash comes from the value's type string; its lowest bit says whether a meta byte follows. The meta byte says
how wide every container length in the payload is, and whether the type string itself follows (debug builds send
it, release builds do not). Without a meta byte lengths are one byte wide. All integers are little-endian.

Source: yalantinglibs, "struct_pack layout" and "struct_pack type system"; checked against recorded frames.
"""

from __future__ import annotations

import hashlib

from ..errors import RemoteProtocolError

__all__ = ["TypeHeader", "container_width", "read_length", "type_hash"]

_WIDTHS = (1, 2, 4, 8)
_META_WIDTH_SHIFT = 3
_META_WIDTH_BITS = 0b11000
_META_TYPE_STRING = 0b100
_META_KNOWN = _META_WIDTH_BITS | _META_TYPE_STRING


def type_hash(type_string: bytes) -> int:
    """The 32-bit hash that announces `type_string`, with the lowest bit clear (no meta byte)."""
    return int.from_bytes(hashlib.md5(type_string, usedforsecurity=False).digest()[:4], "big") & ~1


def container_width(largest: int) -> int:
    """Bytes per container length in a message whose largest container has `largest` elements."""
    if largest < 1 << 8:
        return 1
    if largest < 1 << 16:
        return 2
    return 4 if largest < 1 << 32 else 8


def read_length(data: bytes, offset: int, width: int) -> tuple[int, int]:
    """Read a container length: (length, offset behind it)."""
    end = offset + width
    if len(data) < end:
        raise RemoteProtocolError(f"value of {len(data)} bytes ends inside a container length")
    return int.from_bytes(data[offset:end], "little"), end


class TypeHeader:
    """The header of one value type, ready to be written or recognised in each of its forms."""

    def __init__(self, type_string: bytes, name: str) -> None:
        """Describe the type whose struct_pack type string is `type_string`; `name` is for error messages."""
        self._name = name
        self._type_string = type_string
        self._plain = type_hash(type_string)
        self._encoded = {
            width: (self._plain | 1).to_bytes(4, "little") + bytes((index << _META_WIDTH_SHIFT,))
            for index, width in enumerate(_WIDTHS)
        }
        self._encoded[1] = self._plain.to_bytes(4, "little")
        # What a debug build of the master sends, recognised in one step because every answer passes here.
        self._debug_forms = {self.debug_form(width): width for width in _WIDTHS}
        self._debug_length = 6 + len(type_string)

    def encode(self, width: int) -> bytes:
        """The header for a payload whose container lengths are `width` bytes wide, without the type string."""
        return self._encoded[width]

    def debug_form(self, width: int) -> bytes:
        """The header as a debug build writes it: with meta byte and type string."""
        meta = _WIDTHS.index(width) << _META_WIDTH_SHIFT | _META_TYPE_STRING
        return (self._plain | 1).to_bytes(4, "little") + bytes((meta,)) + self._type_string + b"\0"

    def matches(self, data: bytes) -> bool:
        """Whether `data` starts with this type's hash, whatever follows."""
        return len(data) >= 4 and int.from_bytes(data[:4], "little") & ~1 == self._plain

    def decode(self, data: bytes) -> tuple[int, int]:
        """Recognise the header at the start of `data`: (container width, offset of the payload).

        Raises:
            RemoteProtocolError: `data` is too short, of another type, or has meta bits that nobody documented.
        """
        width = self._debug_forms.get(data[: self._debug_length])
        if width is not None:
            return width, self._debug_length
        return self._decode_any_form(data)

    def _decode_any_form(self, data: bytes) -> tuple[int, int]:
        if len(data) < 4:
            raise RemoteProtocolError(f"{self._name}: value of {len(data)} bytes has no type hash")
        seen = int.from_bytes(data[:4], "little")
        if seen & ~1 != self._plain:
            raise RemoteProtocolError(
                f"{self._name}: type hash {seen & ~1:#010x} where {self._plain:#010x} was expected;"
                " the master speaks another version of this call"
            )
        if not seen & 1:
            return 1, 4
        if len(data) < 5:
            raise RemoteProtocolError(f"{self._name}: value ends before its meta byte")
        meta = data[4]
        if meta & ~_META_KNOWN:
            raise RemoteProtocolError(f"{self._name}: unknown bits in meta byte {meta:#04x}")
        offset = 5
        if meta & _META_TYPE_STRING:
            offset = 6 + len(self._type_string)
            if data[5:offset] != self._type_string + b"\0":
                raise RemoteProtocolError(f"{self._name}: type string {data[5:offset].hex(' ')} does not fit its hash")
        return _WIDTHS[(meta & _META_WIDTH_BITS) >> _META_WIDTH_SHIFT], offset
