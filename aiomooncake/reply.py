"""What comes back for a list of keys, from the wire up to the engine."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ERROR", "HIT", "MISS", "Reply"]

MISS = 0
HIT = 1
ERROR = 2  # never equal to a hit and never equal to a miss


class Reply(NamedTuple):
    """Answers in key order.

    `bits` has one byte a key: HIT, MISS or ERROR. `errors` maps the position of each ERROR to Mooncake's code;
    it is empty exactly when `bits` holds no ERROR.
    """

    bits: bytes
    errors: dict[int, int]
