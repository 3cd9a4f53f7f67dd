"""The two serializations that vLLM hashes with SHA-256, shared by vLLM's and LMCache's chains.

vLLM main, September 2026, `vllm/utils/hashing.py`: `sha256` is of pickle protocol 5, `sha256_cbor` of canonical CBOR
(RFC 8949, section 4.2.1: shortest heads, definite lengths). Both see (previous, tokens of the block, extra).
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    from .tokens import TokenArray

    Atom: TypeAlias = int | bytes | str | None
    Value: TypeAlias = Atom | tuple[Atom, ...]

__all__ = ["SERIALIZERS", "Serializer"]


class Serializer(Protocol):
    """How a value and a block of tokens become the bytes that are hashed."""

    def digest(self, value: Value) -> bytes:
        """The hash of a single value: of a seed, before any chain."""

    def blocks(self, tokens: TokenArray, size: int) -> Sequence[object]:
        """The whole blocks of `size` tokens, each in the form that `chain` takes."""

    def chain(self, previous: int | bytes, block: Any, extra: tuple[str, ...] | None) -> bytes:
        """The hash of a block that follows `previous`."""


class _Pickle:
    def digest(self, value: Value) -> bytes:
        return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()

    def blocks(self, tokens: TokenArray, size: int) -> list[tuple[int, ...]]:
        ints = tokens.tolist()
        return [tuple(ints[start : start + size]) for start in range(0, len(ints) - size + 1, size)]

    def chain(self, previous: int | bytes, block: tuple[int, ...], extra: tuple[str, ...] | None) -> bytes:
        return hashlib.sha256(pickle.dumps((previous, block, extra), protocol=5)).digest()


class _Cbor:
    def digest(self, value: Value) -> bytes:
        return hashlib.sha256(_cbor(value)).digest()

    def blocks(self, tokens: TokenArray, size: int) -> list[bytes]:
        encoded, token_ends = _cbor_unsigned(tokens)
        ends = token_ends[size - 1 :: size].tolist()
        head = _cbor_head(4, size)
        return [head + encoded[start:end] for start, end in itertools.pairwise([0, *ends])]

    def chain(self, previous: int | bytes, block: bytes, extra: tuple[str, ...] | None) -> bytes:
        return hashlib.sha256(b"\x83" + _cbor(previous) + block + _cbor(extra)).digest()


SERIALIZERS: dict[str, Serializer] = {"sha256": _Pickle(), "sha256_cbor": _Cbor()}


def _cbor(value: Value) -> bytes:
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        encoded = value.encode()
        return _cbor_head(3, len(encoded)) + encoded
    return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))


def _cbor_head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    exponent = next(e for e in range(4) if argument < 1 << (8 << e))
    return bytes([major << 5 | 24 + exponent]) + argument.to_bytes(1 << exponent, "big")


def _cbor_unsigned(tokens: TokenArray) -> tuple[bytes, NDArray[np.intp]]:
    """Every token as a CBOR integer, one after the other, and where each ends. `_cbor_head(0, token)` for all."""
    widths = (0, 1, 2, 4, 8)  # of what follows the first byte
    kind = np.zeros(len(tokens), dtype=np.intp)
    for limit in (24, 1 << 8, 1 << 16, 1 << 32):
        kind += tokens >= limit
    ends = np.cumsum(np.array(widths)[kind] + 1)
    encoded = np.empty(int(ends[-1]) if len(ends) else 0, dtype="u1")
    for number, width in enumerate(widths):
        at = np.flatnonzero(kind == number)
        starts = ends[at] - width
        if width == 0:
            encoded[starts - 1] = tokens[at]
        else:
            encoded[starts - 1] = 23 + number
            values = tokens[at].astype(f">u{width}").view("u1").reshape(-1, width)
            for i in range(width):
                encoded[starts + i] = values[:, i]
    return encoded.tobytes(), ends
