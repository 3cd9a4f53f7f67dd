"""Token ids as numpy buffers, and the checks that every hash scheme shares."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
    TokenArray: TypeAlias = NDArray[np.unsignedinteger[Any]]

__all__ = ["as_tokens", "check_count", "check_text"]

_NARROW_LIMIT = 1 << 32
_LIMIT = 1 << 63  # SGLang's native hasher takes int64


def as_tokens(token_ids: TokenIds) -> TokenArray:
    """Token ids as a little-endian buffer: 4 bytes each, or 8 bytes each when one of them needs more.

    Args:
        token_ids: Integers from 0 to 2^63 - 1: a list or tuple, a numpy array of one dimension, or what numpy can
            view as one. Not changed; the result may share its memory.

    Raises:
        ConfigError: Not a sequence of integers in that range.
    """
    if isinstance(token_ids, str | bytes | bytearray):
        raise ConfigError(
            f"token ids must be a sequence of integers, not {type(token_ids).__name__}: tokenize it first"
        )
    if isinstance(token_ids, Sequence):
        return _from_sequence(token_ids)
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1:
        raise ConfigError(f"token ids must have one dimension, not shape {tokens.shape}: pass one prompt at a time")
    if tokens.size == 0:
        return np.empty(0, dtype="<u4")
    if tokens.dtype.kind not in "iu":
        raise ConfigError(f"token ids must be integers, not an array of {tokens.dtype}")
    highest = int(tokens.max())
    if int(tokens.min()) < 0 or highest >= _LIMIT:
        raise _out_of_range(tokens.tolist())
    return tokens.astype("<u4" if highest < _NARROW_LIMIT else "<u8", copy=False)


def _from_sequence(token_ids: Sequence[int]) -> TokenArray:
    if not token_ids:
        return np.empty(0, dtype="<u4")
    try:
        # `array` checks type and range at three times the speed of numpy's conversion of a list.
        try:
            return np.frombuffer(array("I", token_ids), dtype=np.uint32).astype("<u4", copy=False)
        except OverflowError:
            wide = np.frombuffer(array("q", token_ids), dtype=np.int64)
    except OverflowError:
        raise _out_of_range(token_ids) from None
    except TypeError:
        i, token = next((i, t) for i, t in enumerate(token_ids) if not hasattr(t, "__index__"))
        raise ConfigError(f"token id {i} is {token!r} ({type(token).__name__}): token ids are integers") from None
    if int(wide.min()) < 0:
        raise _out_of_range(token_ids)
    return wide.astype("<u8", copy=False)


def _out_of_range(token_ids: Sequence[int]) -> ConfigError:
    i, token = next((i, t) for i, t in enumerate(token_ids) if not 0 <= t < _LIMIT)
    return ConfigError(f"token id {i} is {token}: token ids are from 0 to 2^63 - 1")


def check_count(name: str, value: object) -> None:
    """Refuse anything but an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse anything but None and a string that has a UTF-8 form."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string or None, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} has no UTF-8 form: {error}") from None
