"""What is known of one pool during a lookup: folding answers, finding usable lengths. Pure.

A page counts as a hit when all its objects exist, as a miss when one is known not to, and as an error otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..reply import ERROR, HIT, MISS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["UNKNOWN", "LeadingTrack", "TrailingTrack", "usable_lengths"]

UNKNOWN = 3  # the state of a page that was not asked; the others are reply.MISS, HIT and ERROR
_UNKNOWN = bytes([UNKNOWN])
_MIN_REACH = 16  # pages of a trailing pool's second question: holes are wider than a window of one


def usable_lengths(bad: NDArray[np.bool_], window: int) -> NDArray[np.bool_]:
    """For each prefix length 1..n: are its last `window` pages (all, when it is shorter) free of bad ones?"""
    count = np.cumsum(bad)
    recent = count.copy()
    recent[window:] -= count[:-window]
    usable: NDArray[np.bool_] = recent == 0
    return usable


class LeadingTrack:
    """A pool that needs all pages: asked from its first page on, until one is not a hit.

    Attributes:
        objects: Objects per page.
        asked: Pages asked; always the first ones.
        run: Leading pages that are hits.
        ended: The page after the run is known not to be a hit.
        uncertain: It ended at an error, not at a miss.
    """

    __slots__ = ("asked", "ended", "objects", "run", "uncertain")

    def __init__(self, objects: int) -> None:
        self.objects = objects
        self.asked = 0
        self.run = 0
        self.ended = False
        self.uncertain = False

    def fold(self, start: int, stop: int, bits: bytes) -> None:
        """Take in the answers for the pages `start..stop`, one byte an object, page by page."""
        self.asked = stop
        first = bits.find(MISS)
        error = bits.find(ERROR)
        if first < 0 or 0 <= error < first:
            first = error
        if first < 0:
            self.run = stop
            return
        page = first // self.objects
        self.run = start + page
        self.ended = True
        self.uncertain = MISS not in bits[page * self.objects : (page + 1) * self.objects]


class TrailingTrack:
    """A pool that needs the last `window` pages of a prefix.

    Attributes:
        objects: Objects per page.
        window: Pages needed at the end of a prefix.
        pages: State of each page, one byte each.
        asked: Pages asked, when asked from the first page on.
    """

    __slots__ = ("_reach", "asked", "objects", "pages", "window")

    def __init__(self, objects: int, window: int, pages: int) -> None:
        self.objects = objects
        self.window = window
        self.pages = bytearray(_UNKNOWN * pages)
        self.asked = 0
        self._reach = window

    def fold(self, start: int, stop: int, bits: bytes) -> None:
        """Take in the answers for the pages `start..stop`, one byte an object, page by page."""
        self.asked = stop
        if self.objects > 1:
            table = np.frombuffer(bits, np.uint8).reshape(-1, self.objects)
            bits = np.where((table == MISS).any(axis=1), MISS, table.max(axis=1)).astype(np.uint8).tobytes()
        self.pages[start:stop] = bits

    def possible(self, limit: int) -> int:
        """The longest prefix of at most `limit` pages that nothing known forbids; 0 when there is none."""
        tail = self.pages[max(0, limit - self.window) : limit]
        if MISS not in tail and ERROR not in tail:
            return limit
        allowed = np.flatnonzero(self.allowed(limit, may_be=(HIT, UNKNOWN)))
        return int(allowed[-1]) + 1 if len(allowed) else 0

    def allowed(self, limit: int, *, may_be: tuple[int, ...] = (HIT,)) -> NDArray[np.bool_]:
        """For each prefix length 1..limit: are all pages that it needs in one of the states `may_be`?"""
        bad = np.ones(UNKNOWN + 1, np.bool_)
        bad[list(may_be)] = False
        return usable_lengths(bad[np.frombuffer(self.pages, np.uint8)[:limit]], self.window)

    def is_known(self, length: int) -> bool:
        """Whether all pages that a prefix of this length needs have been asked."""
        return UNKNOWN not in self.pages[max(0, length - self.window) : length]

    def tail(self, length: int) -> Iterator[tuple[int, int]]:
        """What remains to be asked to know whether a prefix of this length is usable."""
        return self._unknown(max(0, length - self.window), length)

    def search(self, length: int) -> Iterator[tuple[int, int]]:
        """The same, reaching further back at each call: at first one window, then twice as far each time."""
        start = max(0, length - self._reach)
        self._reach = max(2 * self._reach, _MIN_REACH)
        return self._unknown(start, length)

    def _unknown(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        while (start := self.pages.find(UNKNOWN, start, stop)) >= 0:
            rest = self.pages[start:stop]
            end = start + len(rest) - len(rest.lstrip(_UNKNOWN))
            yield start, end
            start = end
