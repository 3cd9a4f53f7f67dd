"""The wire format once more, as plainly as its description reads: what the codec is compared with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = bytes.fromhex("84800c")
KEYS_AND_TENANT = bytes.fromhex("fd84800c800cff")
RESULTS = bytes.fromhex("84870b01")
VERSION = bytes.fromhex("87800c01")
NO_VERSION = bytes.fromhex("87fa01")
TEXT = bytes.fromhex("800c")

WIDTHS = (1, 2, 4, 8)


def header(type_string: bytes, width: int, *, meta: bool | None = None, debug: bool = False) -> bytes:
    """A type header; `meta` forces or forbids the meta byte, `debug` adds the type string as debug builds do."""
    plain = int.from_bytes(hashlib.md5(type_string).digest()[:4], "big") & 0xFFFFFFFE
    if meta is None:
        meta = debug or width > 1
    if not meta:
        return plain.to_bytes(4, "little")
    bits = WIDTHS.index(width) << 3 | (0b100 if debug else 0)
    return (plain | 1).to_bytes(4, "little") + bytes([bits]) + (type_string + b"\0" if debug else b"")


def width_for(*sizes: int) -> int:
    return next(width for width in WIDTHS if max(sizes) < 256**width)


def request(keys: Sequence[str | bytes], tenant: str | None, *, debug: bool = False) -> bytes:
    """The body of a BatchExistKey request."""
    raw = [key if isinstance(key, bytes) else key.encode() for key in keys]
    tail = [] if tenant is None else [tenant.encode()]
    width = width_for(len(raw), *map(len, raw + tail))
    head = header(KEYS if tenant is None else KEYS_AND_TENANT, width, debug=debug)
    strings = [len(string).to_bytes(width, "little") + string for string in raw + tail]
    return head + len(raw).to_bytes(width, "little") + b"".join(strings)


def answer(
    answers: Sequence[bool | int], *, width: int | None = None, meta: bool | None = None, debug: bool = False
) -> bytes:
    """The body of a BatchExistKey answer: per key True, False or an error code."""
    width = width or width_for(len(answers))
    body = header(RESULTS, width, meta=meta, debug=debug) + len(answers).to_bytes(width, "little")
    for each in answers:
        body += bytes([1, each]) if isinstance(each, bool) else b"\0" + each.to_bytes(4, "little", signed=True)
    return body


def read_answer(body: bytes, count: int) -> list[bool | int] | None:
    """The answers for `count` keys in `body`; None if it is no such answer."""
    for width in WIDTHS:
        for head in (
            header(RESULTS, width, meta=True, debug=True),
            header(RESULTS, width, meta=True),
            header(RESULTS, 1, meta=False) if width == 1 else b"",
        ):
            start = head + count.to_bytes(width, "little")
            if head and body.startswith(start):
                return _read_each(list(body[len(start) :]), count)
    return None


def _read_each(left: list[int], count: int) -> list[bool | int] | None:
    answers: list[bool | int] = []
    left.reverse()
    try:
        for _ in range(count):
            present = left.pop()
            if present > 1:
                return None
            if present:
                answers.append((False, True)[left.pop()])
            else:
                answers.append(int.from_bytes([left.pop() for _ in range(4)], "little", signed=True))
    except IndexError:
        return None
    return None if left else answers


def string(text: bytes, *, width: int | None = None, debug: bool = False) -> bytes:
    """The body of an error answer."""
    width = width or width_for(len(text))
    return header(TEXT, width, debug=debug) + len(text).to_bytes(width, "little") + text


def frame(seq: int, body: bytes, error: int = 0) -> bytes:
    """A whole response."""
    head = bytes([0x15, 0, error, 0]) + seq.to_bytes(4, "little") + len(body).to_bytes(4, "little") + bytes(4)
    return head + body
