"""What a hybrid lookup answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LookupResult"]


@dataclass(frozen=True, eq=False)
class LookupResult:
    """How much of a prompt can be restored. Lengths are in pages, counted from the first page.

    Attributes:
        kv_pages: Leading run of pages whose KV objects all exist; all pages asked about when the layout has no KV
            pool (a logical anchor).
        pages: Longest usable prefix once every pool has had its say: how much can be restored.
        pool_pages: What each pool alone allows, "kv" first and the others in the layout's order. A pool that allows
            nothing is left out, and so is every pool after the one that left nothing restorable. With
            `restorable=True` this is SGLang's `extra_pool_hit_pages`. Without it, a trailing pool's entry is the
            longest prefix that it allows within what the pools that need all pages allow, and what stands after a
            pool that allows nothing is left out.
        restorable: Every usable prefix length, ascending, read-only; None unless asked for. Trailing pools can leave
            holes in it. Ranks that share a prompt must intersect theirs, or ask with a layout that lists all ranks.
        keys_queried: Object keys asked, those that a wrong prediction asked in vain included.
        round_trips: Questions asked one after the other; all pools share each.
        degraded: None, or the Mooncake code of the first key whose error the answer depends on; the error then counts
            as a miss. With errors="raise" this happens only when `kv_pages`, `pages` and `restorable` are certain
            and just an entry of `pool_pages` could be larger.
    """

    kv_pages: int
    pages: int
    pool_pages: dict[str, int]
    restorable: NDArray[np.int64] | None = None
    keys_queried: int = 0
    round_trips: int = 0
    degraded: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LookupResult):
            return NotImplemented
        mine, theirs = dict(vars(self)), dict(vars(other))
        lengths, other_lengths = mine.pop("restorable"), theirs.pop("restorable")
        if lengths is None or other_lengths is None:
            return mine == theirs and lengths is other_lengths
        return mine == theirs and np.array_equal(lengths, other_lengths)

    __hash__ = None  # type: ignore[assignment]  # it holds a dict and an array
