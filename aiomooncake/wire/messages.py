"""The calls of mooncake::WrappedMasterService that a lookup needs: BatchExistKey and ServiceReady.

BatchExistKey takes (keys, tenant) from master 0.3.12 on and (keys) before; a master answers the form that it does
not know with `invalid_rpc_arguments` and keeps the connection, so asking tells. The result is one
`expected<bool, i32>` per key.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import InvalidKeyError, LocalProtocolError, RemoteProtocolError
from ..keys import ObjectKeys
from ..reply import ERROR, HIT, MISS, NO_ERRORS, Reply
from .coro_rpc import function_id
from .struct_pack import TypeHeader, container_width, read_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BATCH_EXIST_KEY",
    "MAX_KEY_BYTES",
    "MAX_MESSAGE",
    "SERVICE_READY",
    "BatchExistEncoder",
    "Key",
    "ServiceReady",
    "check_keys",
    "decode_batch_exist",
    "decode_error_message",
    "decode_service_ready",
    "largest_batch_exist_answer",
]

Key: TypeAlias = "str | bytes"

BATCH_EXIST_KEY = function_id("mooncake::WrappedMasterService::BatchExistKey")
SERVICE_READY = function_id("mooncake::WrappedMasterService::ServiceReady")

# struct_pack type strings, as debug builds of the master write them.
_KEYS = TypeHeader(bytes.fromhex("84800c"), "BatchExistKey(keys)")
_KEYS_AND_TENANT = TypeHeader(bytes.fromhex("fd84800c800cff"), "BatchExistKey(keys, tenant)")
_RESULTS = TypeHeader(bytes.fromhex("84870b01"), "BatchExistKey's answer")
_VERSION = TypeHeader(bytes.fromhex("87800c01"), "ServiceReady's answer")
_NO_VERSION = TypeHeader(bytes.fromhex("87fa01"), "ServiceReady's answer")  # expected<void, i32>
_TEXT = TypeHeader(bytes.fromhex("800c"), "error message")

# Bytes of keys in one call. A master takes more (68 MB measured), but is held up by it, and so is everybody else. Keys
# that wait are the callers' own strings, so this, times the calls in flight, is what asking holds besides them.
MAX_KEY_BYTES = 16 << 20
_BYTES = [bytes((value,)) for value in range(256)]

# More than any error message or version string of a master.
MAX_MESSAGE = 64 * 1024


class BatchExistEncoder:
    """Writes BatchExistKey arguments in the form that one master understands."""

    def __init__(self, tenant: str | None) -> None:
        """Write (keys, tenant), or (keys) alone for masters up to 0.3.11 when `tenant` is None."""
        self._header = _KEYS if tenant is None else _KEYS_AND_TENANT
        self._tenant = None if tenant is None else tenant.encode()
        self._lone_head = self._header.encode(1) + b"\1"
        self._lone_tail = b"" if self._tenant is None else None
        if self._tenant is not None and len(self._tenant) < 256:
            self._lone_tail = _BYTES[len(self._tenant)] + self._tenant

    def encode(self, keys: Sequence[Key]) -> bytes:
        """The request body for `keys`, in their order, duplicates kept.

        Raises:
            InvalidKeyError: a key has no form on the wire; the message names it.
            LocalProtocolError: the keys are more than MAX_KEY_BYTES together.
        """
        if len(keys) == 1 and (body := self._encode_one(keys[0])) is not None:
            return body
        count = len(keys)
        if isinstance(keys, ObjectKeys):
            if keys.hash_length is not None:
                with suppress(UnicodeEncodeError):  # told below, with the key that it is in
                    return self._encode_unspelled(keys)
            keys = list(keys)  # spelled once, not at every look
        # Keys of one engine mostly have one length and are ASCII: then the length prefixes are one separator, and
        # a join in C writes the lot. Measured in benchmarks/codec.py.
        try:
            lengths = set(map(len, keys))
            longest = max(lengths, default=0)
            width = container_width(max(count, longest, len(self._tenant or b"")))
            # Latin-1 maps each prefix byte to the character of the same number, and back.
            prefixes = {length: length.to_bytes(width, "little").decode("latin-1") for length in lengths}
            if len(lengths) == 1:
                prefix = prefixes[longest]
                text = prefix + prefix.join(keys)  # type: ignore[arg-type]  # refuses bytes, and so do the others
            else:
                parts = [""] * (2 * count)
                parts[::2] = [prefixes[len(key)] for key in keys]
                parts[1::2] = keys  # type: ignore[assignment]
                text = "".join(parts)
            # Prefixes need not be ASCII: then the keys are looked at alone.
            is_ascii = text.isascii() or "".join(keys).isascii()  # type: ignore[arg-type]
        except TypeError:
            return self._encode_any(keys)
        if not is_ascii:
            return self._encode_any(keys)
        _check_size(len(text) - width * count, count)
        return self._assemble(count, (text.encode("latin-1"),), width)

    def _encode_unspelled(self, keys: ObjectKeys) -> bytes:
        count = len(keys)
        width = container_width(max(count, keys.longest(), len(self._tenant or b"")))
        written = keys.write(width)
        _check_size(sum(map(len, written)) - width * count, count)
        return self._assemble(count, written, width)

    def _encode_one(self, key: Key) -> bytes | None:
        """The lone question of an idle engine, where every microsecond shows; None if lengths need more than a byte."""
        raw = _key_bytes(key, 0)
        if len(raw) > 255 or self._lone_tail is None:
            return None
        return self._lone_head + _BYTES[len(raw)] + raw + self._lone_tail

    def _encode_any(self, keys: Sequence[Key]) -> bytes:
        raw = [_key_bytes(key, position) for position, key in enumerate(keys)]
        _check_size(sum(map(len, raw)), len(raw))
        tenant = self._tenant
        largest = max(len(raw), max(map(len, raw)), 0 if tenant is None else len(tenant))
        width = container_width(largest)
        parts = [b""] * (2 * len(raw))
        parts[::2] = [len(key).to_bytes(width, "little") for key in raw]
        parts[1::2] = raw
        return self._assemble(len(raw), parts, width)

    def _assemble(self, count: int, keys: Sequence[bytes | bytearray], width: int) -> bytes:
        head = self._header.encode(width) + count.to_bytes(width, "little")
        tenant = self._tenant
        if tenant is None:
            return b"".join((head, *keys))
        return b"".join((head, *keys, len(tenant).to_bytes(width, "little"), tenant))


def _check_size(size: int, count: int) -> None:
    if size > MAX_KEY_BYTES:
        raise LocalProtocolError(f"{count} keys of {size} bytes do not fit one call; the limit is {MAX_KEY_BYTES}")


def check_keys(keys: Sequence[Key]) -> None:
    """Raise InvalidKeyError for the first key that has no form on the wire."""
    try:
        if "".join(keys).isascii():  # type: ignore[arg-type]  # told apart below
            return
    except TypeError:
        pass
    for position, key in enumerate(keys):
        _key_bytes(key, position)


def _key_bytes(key: object, position: int) -> bytes:
    if isinstance(key, str):
        try:
            return str.encode(key)
        except UnicodeEncodeError as error:
            raise InvalidKeyError(
                f"key {position} has no UTF-8 form ({error.reason} at character {error.start}): {key[:64]!r};"
                " give the key's raw bytes instead"
            ) from error
    if isinstance(key, bytes):
        return key
    raise InvalidKeyError(f"key {position} is {_brief(key)} of type {type(key).__name__}; keys are str or bytes")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:64] + "…"


def largest_batch_exist_answer(count: int) -> int:
    """The most bytes an answer for `count` keys can have: header, length, and an error code for each key."""
    return 32 + 5 * count


# What a master says to one key, recognised whole.
_LONE_ANSWERS = {_RESULTS.debug_form(1) + b"\1\1" + _BYTES[bit]: Reply(_BYTES[bit], NO_ERRORS) for bit in (MISS, HIT)}


def decode_batch_exist(body: bytes, count: int) -> Reply:
    """The answers to a question of `count` keys, in its order.

    Raises:
        RemoteProtocolError: `body` is no such answer, whole and nothing but.
    """
    if count == 1 and (known := _LONE_ANSWERS.get(body)) is not None:
        return known
    width, offset = _RESULTS.decode(body)
    answered, offset = read_length(body, offset, width)
    if answered != count:
        raise RemoteProtocolError(f"the master answered {answered} keys where {count} were asked")
    if len(body) == offset + 2 * count:
        bits = body[offset + 1 :: 2]
        if body[offset::2].count(1) == count and bits.count(1) + bits.count(0) == count:
            return Reply(bits, NO_ERRORS)
    return _decode_with_errors(body, offset, count)


def _decode_with_errors(body: bytes, offset: int, count: int) -> Reply:
    bits = bytearray(count)
    errors: dict[int, int] = {}
    for position in range(count):
        present = body[offset : offset + 1]
        if present == b"\1":
            value = body[offset + 1 : offset + 2]
            if value not in (b"\0", b"\1"):
                raise RemoteProtocolError(f"answer for key {position} is {value.hex() or 'missing'}, not 00 or 01")
            bits[position] = value[0]
            offset += 2
        elif present == b"\0":
            if len(body) < offset + 5:
                raise RemoteProtocolError(f"answer ends inside the error code of key {position}")
            errors[position] = int.from_bytes(body[offset + 1 : offset + 5], "little", signed=True)
            bits[position] = ERROR
            offset += 5
        else:
            raise RemoteProtocolError(
                f"answer for key {position} starts with {present.hex() or 'nothing'}, not 00 or 01"
            )
    if offset != len(body):
        raise RemoteProtocolError(f"{len(body) - offset} bytes follow the answer for the last of {count} keys")
    return Reply(bytes(bits), errors)


class ServiceReady(NamedTuple):
    """What a master says of itself. `code` is 0 when it serves, else Mooncake's error code.

    `version` is its store protocol's version, None from masters that report none (0.3.7).
    """

    version: str | None
    code: int = 0


def decode_service_ready(body: bytes) -> ServiceReady:
    """The answer to ServiceReady.

    Raises:
        RemoteProtocolError: `body` is no such answer, whole and nothing but.
    """
    has_version = not _NO_VERSION.matches(body)
    width, offset = (_VERSION if has_version else _NO_VERSION).decode(body)
    ready, rest = body[offset : offset + 1], body[offset + 1 :]
    if ready == b"\0" and len(rest) == 4 and any(rest):  # an error of code 0 says nothing
        return ServiceReady(None, int.from_bytes(rest, "little", signed=True))
    if ready == b"\1" and has_version:
        return ServiceReady(_decode_string(rest, 0, width))
    if ready == b"\1" and not rest:
        return ServiceReady(None)
    raise RemoteProtocolError(f"ServiceReady was answered with {body[offset : offset + 16].hex(' ') or 'nothing'}")


def decode_error_message(body: bytes) -> str:
    """The text that comes with an RPC error; undecodable bytes are replaced, since it is only for people.

    Raises:
        RemoteProtocolError: `body` is no string.
    """
    width, offset = _TEXT.decode(body)
    return _decode_string(body, offset, width)


def _decode_string(body: bytes, offset: int, width: int) -> str:
    length, offset = read_length(body, offset, width)
    if len(body) != offset + length:
        raise RemoteProtocolError(f"string of {length} bytes where {len(body) - offset} follow")
    return body[offset:].decode(errors="replace")
