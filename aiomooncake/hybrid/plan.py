"""Which pages to ask of which pool next, and what the answers add up to. Pure: no I/O, no clock, no event loop.

    plan = Plan(layout, pages, ...)
    while spans := plan.next_spans():
        plan.fold(spans, <the answers for the objects of these spans, in order>)
    plan.verdict()

Semantics are those of SGLang's `batch_exists_v2` (0.5.23). What is asked, a round at a time:

- The anchor (the KV pool, or without one every pool that needs all pages) in windows that double, until one is not
  full. The other pools that need all pages follow one window behind, as far as the anchor is known to reach.
- A trailing pool at the end of the prefix that the others allow, and from there backwards until it has a complete
  window; then, when several trailing pools disagree, at the lengths that all of them may still allow. When every
  usable length is wanted it is asked for all pages that the anchor has.
- With a forecast of p pages, the first round asks the anchor for p + 1 and every other pool as if p were certain. What
  the forecast got wrong is made good by the rules above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..layout import KV_POOL, HitPolicy
from ..reply import ERROR, HIT
from .tracks import UNKNOWN, LeadingTrack, TrailingTrack

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    from ..layout import Layout
    from ..reply import Reply

__all__ = ["Fault", "Plan", "Span", "Verdict"]


class Span(NamedTuple):
    """The objects that one pool, by its place in `layout.pools`, has for the pages `start..stop`."""

    pool: int
    start: int
    stop: int


class Fault(NamedTuple):
    """A key that was answered with an error code: pool by its place, page, place among the page's objects, code."""

    pool: int
    page: int
    item: int
    code: int


class Verdict(NamedTuple):
    """What a finished plan knows; every error counts as a miss.

    Attributes:
        kv_pages, pages, pool_pages, restorable: As in `LookupResult`.
        boundary: Pages that the anchor has: what a forecast should have been.
        fault: The first error that any of it depends on.
        decisive: `kv_pages`, `pages` or `restorable` could be different, had that key been a hit.
    """

    kv_pages: int
    pages: int
    pool_pages: dict[str, int]
    restorable: NDArray[np.int64] | None
    boundary: int
    fault: Fault | None
    decisive: bool


class Plan:
    """The state of one lookup.

    Args:
        layout: Pools and their policies.
        pages: Pages of the prompt.
        restorable: Every usable length is wanted, not only the longest.
        first_window: Pages in the first window when nothing better is known; later windows are 2, 4, 8… times that.
        expected: Forecast length of the stored prefix; None: no forecast.
        cautious: The forecast is used only after a first window was full.
    """

    def __init__(
        self,
        layout: Layout,
        pages: int,
        *,
        restorable: bool = False,
        first_window: int,
        expected: int | None = None,
        cautious: bool = False,
    ) -> None:
        self._names = [pool.name for pool in layout.pools]
        self._pages = pages
        self._restorable = restorable
        self._first_window = first_window
        self._expected = None if expected is None else max(0, min(expected, pages))
        self._cautious = cautious
        self._kv: LeadingTrack | None = None
        self._leading: list[tuple[int, LeadingTrack]] = []
        self._trailing: list[tuple[int, TrailingTrack]] = []
        self._tracks: list[LeadingTrack | TrailingTrack] = []
        for place, pool in enumerate(layout.pools):
            self._add_track(place, pool.name, len(pool.suffixes), pool.hit_policy, pool.trailing_pages)
        self._hinted: list[Span] = []
        self._faults: list[Fault] = []
        self.rounds = 0

    def _add_track(self, place: int, name: str, objects: int, policy: HitPolicy, window: int | None) -> None:
        if policy is HitPolicy.TRAILING_PAGES and window is not None:
            trailing = TrailingTrack(objects, window, self._pages)
            self._trailing.append((place, trailing))
            self._tracks.append(trailing)
            return
        leading = LeadingTrack(objects)
        self._tracks.append(leading)
        if name == KV_POOL:
            self._kv = leading
        else:
            self._leading.append((place, leading))

    # Asking

    def next_spans(self) -> list[Span]:
        """What to ask now, all of it at once; empty when the answer is known."""
        if not self._pages:
            return []
        window, ahead = self._stride()
        spans = self._leading_spans(window, ahead)
        spans += self._whole_spans(ahead) if self._restorable else self._tail_spans(ahead)
        if ahead or (self.rounds == 0 and self._expected is not None):
            self._hinted += spans
        return spans

    def fold(self, spans: list[Span], reply: Reply) -> None:
        """Take in the answers to `spans`: the objects of the first span, page by page, then those of the next."""
        offset = 0
        for place, start, stop in spans:
            track = self._tracks[place]
            size = (stop - start) * track.objects
            track.fold(start, stop, reply.bits[offset : offset + size])
            if reply.errors:
                self._faults += (
                    Fault(
                        place, start + (position - offset) // track.objects, (position - offset) % track.objects, code
                    )
                    for position, code in sorted(reply.errors.items())
                    if offset <= position < offset + size
                )
            offset += size
        self.rounds += 1

    @property
    def faults(self) -> int:
        """How many keys were answered with an error code."""
        return len(self._faults)

    def _stride(self) -> tuple[int, int]:
        """The anchor's window this round, and how far the other pools are asked on trust in the forecast."""
        first, expected = self._first_window, self._expected
        if expected is None:
            return first << self.rounds, 0
        if self.rounds == 0:
            return (min(expected + 1, first), 0) if self._cautious else (expected + 1, expected)
        if self.rounds == 1 and self._cautious and expected + 1 > first:
            return expected + 1 - first, expected
        # It fell short: others have stored more of this prompt than was seen here, and mostly much more.
        return first << (self.rounds + 1), 0

    def _leading_spans(self, window: int, ahead: int) -> list[Span]:
        spans = []
        kv, reach = self._kv, self._pages
        if kv is not None:
            if not kv.ended and kv.asked < self._pages:
                spans.append(Span(self._names.index(KV_POOL), kv.asked, min(self._pages, kv.asked + window)))
                reach = max(kv.run, ahead)
            else:
                reach = kv.run
        cut = self._cut()
        for place, track in self._leading:
            stop = reach if kv is not None else min(reach, track.asked + window)
            if place < cut and not track.ended and track.asked < stop:
                spans.append(Span(place, track.asked, stop))
        return spans

    def _whole_spans(self, ahead: int) -> list[Span]:
        """Trailing pools when every usable length is wanted: all pages that the anchor has."""
        spans = []
        cut = self._cut()
        for place, track in self._trailing:
            if self._kv is not None:
                reach = self._kv.run if self._kv.ended else max(self._kv.run, ahead)
            elif self.rounds or ahead or all(earlier > place for earlier, _ in self._leading):
                reach = self._pages
            else:
                reach = 0  # an earlier pool may leave nothing restorable; then this one is not reported
            if place < cut and track.asked < reach:
                spans.append(Span(place, track.asked, reach))
        return spans

    def _tail_spans(self, ahead: int) -> list[Span]:
        lower, upper = self._bounds()
        if lower == upper:
            return self._search_spans(upper)
        # A window at the likely end goes along with the questions about it; looking further back waits for them.
        settled = self._kv is not None and self._is_final(self._kv)
        likely = upper if settled else min(ahead, upper)
        return [Span(place, *pages) for place, track in self._trailing for pages in track.tail(likely)]

    def _search_spans(self, limit: int) -> list[Span]:
        spans = []
        for place, track in self._trailing:
            length = track.possible(limit)
            if not track.is_known(length):
                spans += [Span(place, *pages) for pages in track.search(length)]
        if spans:
            return spans
        length = self._common(limit)
        return [
            Span(place, *pages)
            for place, track in self._trailing
            if not track.is_known(length)
            for pages in track.search(length)
        ]

    def _common(self, limit: int) -> int:
        """The longest prefix of at most `limit` pages that no trailing pool is known to forbid."""
        length, before = limit, -1
        while length != before:
            before = length
            for _, track in self._trailing:
                length = track.possible(length)
        return length

    def _is_final(self, track: LeadingTrack) -> bool:
        return track.ended or track.asked >= self._pages

    def _bounds(self) -> tuple[int, int]:
        """The least and the largest prefix that the pools that need all pages may turn out to allow."""
        kv = self._kv
        lower = upper = self._pages
        if kv is not None:
            lower, upper = kv.run, kv.run if self._is_final(kv) else self._pages
        reach = upper
        for _, track in self._leading:
            lower = min(lower, track.run)
            if track.ended or track.asked >= reach:
                upper = min(upper, track.run)
        return min(lower, upper), upper

    def _cut(self) -> int:
        """Place of the first pool that leaves nothing restorable: later ones are neither asked nor reported."""
        return next((place for place, track in self._leading if track.ended and not track.run), len(self._names))

    # Answering

    def in_vain(self) -> int:
        """Keys that the forecast had asked and that a right one would not have asked; final once the plan is done."""
        kv, boundary = self._kv, self._bounds()[1]
        anchor = self._pages if kv is None else kv.run
        vain = 0
        for place, start, stop in self._hinted:
            track = self._tracks[place]
            if isinstance(track, TrailingTrack):
                useful = anchor if self._restorable else boundary
            elif kv is None or track is kv:
                useful = track.run + 1
            else:
                useful = anchor
            vain += max(0, stop - max(start, useful)) * track.objects
        return vain

    def verdict(self) -> Verdict:
        """The answer; call it when `next_spans` has nothing left."""
        kv_pages = self._pages if self._kv is None else self._kv.run
        boundary = self._bounds()[1]
        if self._restorable:
            entries, restorable = self._all_lengths(kv_pages)
            pages = int(restorable[-1]) if len(restorable) else 0
        else:
            entries, restorable = self._entries(kv_pages, boundary), None
            pages = self._common(boundary)
        pool_pages = {KV_POOL: kv_pages} if kv_pages else {}
        pool_pages.update((self._names[place], length) for place, length in entries if length)
        fault, decisive = None, False
        if self._faults:
            fault, decisive = self._doubt(kv_pages, pages, restorable, entries)
        return Verdict(kv_pages, pages, pool_pages, restorable, boundary, fault, decisive)

    def _all_lengths(self, kv_pages: int) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        usable = np.ones(kv_pages, np.bool_)
        entries: list[tuple[int, int]] = []
        for place, track in self._sidecars():
            if not usable.any():
                break
            if isinstance(track, LeadingTrack):
                length = min(track.run, kv_pages)
                usable[length:] = False
            else:
                allowed = track.allowed(kv_pages)
                length = kv_pages - int(allowed[::-1].argmax()) if allowed.any() else 0
                usable &= allowed
            entries.append((place, length))
        restorable = np.flatnonzero(usable).astype(np.int64) + 1
        restorable.flags.writeable = False
        return entries, restorable

    def _entries(self, kv_pages: int, boundary: int) -> list[tuple[int, int]]:
        entries: list[tuple[int, int]] = []
        for place, track in self._sidecars() if kv_pages else ():
            length = min(track.run, kv_pages) if isinstance(track, LeadingTrack) else track.possible(boundary)
            entries.append((place, length))
            if not length:
                break
        return entries

    def _sidecars(self) -> list[tuple[int, LeadingTrack | TrailingTrack]]:
        return [(place, track) for place, track in enumerate(self._tracks) if track is not self._kv]

    def _doubt(
        self, kv_pages: int, pages: int, restorable: NDArray[np.int64] | None, entries: list[tuple[int, int]]
    ) -> tuple[Fault | None, bool]:
        """The first error that the answer depends on, and whether more than an entry of `pool_pages` does."""
        if self._kv is not None and self._kv.uncertain:
            return self._first_fault({self._names.index(KV_POOL)}), True
        # What would be usable if every error were a hit, and every page that was not asked as well?
        limit = min((t.run for _, t in self._leading if t.ended and not t.uncertain), default=kv_pages)
        usable = np.ones(min(limit, kv_pages), np.bool_)
        for _, track in self._trailing:
            usable &= track.allowed(len(usable), may_be=(HIT, ERROR, UNKNOWN))
        longest = int(np.flatnonzero(usable)[-1]) + 1 if usable.any() else 0
        if longest > pages or (restorable is not None and np.count_nonzero(usable) > len(restorable)):
            return self._first_fault(range(len(self._tracks))), True
        reach = kv_pages if restorable is not None else self._bounds()[1]
        doubtful = {place for place, length in entries if self._could_allow_more(self._tracks[place], length, reach)}
        return self._first_fault(doubtful), False

    def _could_allow_more(self, track: LeadingTrack | TrailingTrack, length: int, reach: int) -> bool:
        if isinstance(track, LeadingTrack):
            return track.uncertain and track.run == length
        allowed = track.allowed(reach, may_be=(HIT, ERROR, UNKNOWN))
        return bool(allowed[length:].any())

    def _first_fault(self, places: Container[int]) -> Fault | None:
        for fault in self._faults:
            track = self._tracks[fault.pool]
            if isinstance(track, LeadingTrack):
                matters = track.uncertain and fault.page == track.run
            else:
                matters = track.pages[fault.page] == ERROR
            if matters and fault.pool in places:
                return fault
        return None
