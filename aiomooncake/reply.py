"""What comes back for a list of keys, from the wire up to the engine."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ERROR", "HIT", "MISS", "NO_ERRORS", "Reply"]

MISS = 0
HIT = 1
ERROR = 2  # never equal to a hit and never equal to a miss


class Reply(NamedTuple):
    """Answers in key order.

    `bits` has one byte a key: HIT, MISS or ERROR. `errors` maps the position of each ERROR to Mooncake's code;
    it is empty exactly when `bits` holds no ERROR.
    """

    bits: bytes
    errors: Mapping[int, int]


NO_ERRORS: Final[Mapping[int, int]] = MappingProxyType({})
